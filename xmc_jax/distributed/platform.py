"""Tells which platform a program is traced for: that of JAX, unless `traced_for` names another."""

import contextlib
import contextvars
from collections.abc import Iterator

import jax

_OTHER = contextvars.ContextVar("platform", default="")


def name() -> str:
  """Returns 'cpu', 'gpu' or 'tpu'."""
  return _OTHER.get() or jax.default_backend()


@contextlib.contextmanager
def traced_for(other: str) -> Iterator[None]:
  """Traces programs as for another platform, of which no device need be here."""
  token = _OTHER.set(other)
  try:
    yield
  finally:
    _OTHER.reset(token)
