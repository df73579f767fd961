"""Serves a trained run over HTTP: a web page and a JSON API (docs/serving.md)."""

from typing import TYPE_CHECKING

from xmc_jax.errors import UserError
from xmc_jax.serve.options import Limits, PageText

if TYPE_CHECKING:
  from xmc_jax.serve.api import app

__all__ = ["Limits", "PageText", "app", "check_installed"]


def __getattr__(name: str) -> object:
  if name != "app":
    raise AttributeError(f"module 'xmc_jax.serve' has no attribute {name!r}")
  check_installed()
  from xmc_jax.serve import api

  return api.app


def check_installed() -> None:
  """Raises UserError if a library is missing that only the server needs."""
  try:
    import fastapi  # noqa: F401
    import prometheus_client  # noqa: F401
    import py3langid  # noqa: F401
    import uvicorn  # noqa: F401
  except ImportError as error:
    raise UserError(
      f"--mode=serve needs FastAPI, uvicorn, prometheus_client and py3langid ({error}): "
      'pip install "xmc_jax[serve]"'
    ) from None
