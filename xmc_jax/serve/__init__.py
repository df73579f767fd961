"""Serves a trained run over HTTP: a web page and a JSON API (docs/serving.md)."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from xmc_jax.errors import UserError
from xmc_jax.serve.limits import Limits
from xmc_jax.serve.page import PageText

if TYPE_CHECKING:
  from fastapi import FastAPI

  from xmc_jax.runs.model import Model

__all__ = ["Limits", "PageText", "app", "check_installed"]

_DEFAULTS, _USUAL = Limits(), PageText()


def app(
  model: "Model",
  *,
  k: int = 5,
  name: str = "",
  limits: Limits = _DEFAULTS,
  allowed_hosts: Sequence[str] = (),
  page_text: PageText = _USUAL,
  threshold: float = -math.inf,
) -> "FastAPI":
  """Returns the page and the API over a model as an ASGI application, for a server of your own.

  The model warms up when the application starts: from then on nothing is compiled. Run one process of it: a
  second one would hold a second copy of the model.

  Args:
    model: a trained run.
    k: labels per text where a request does not say.
    name: what the page and `/health` call the run.
    limits: sizes that are refused, and how requests are joined.
    allowed_hosts: names by which clients may reach the server; a port is ignored, and () is every name. Give
      them where only this machine should reach it, against DNS rebinding.
    page_text: the page's title, description and examples.
    threshold: the least score of a label where a request does not say.

  Raises:
    UserError: FastAPI or prometheus_client is not installed, a limit cannot work, or an allowed host is no
      name.

  Example:
    >>> application = xmc_jax.serve.app(xmc_jax.Model.load("runs/dexml-debian"))
  """
  check_installed()
  from xmc_jax.serve import api

  return api.build(
    model,
    k=k,
    name=name,
    limits=limits,
    allowed_hosts=allowed_hosts,
    page_text=page_text,
    threshold=threshold,
  )


def check_installed() -> None:
  """Raises UserError if a library is missing that only the server needs."""
  try:
    import fastapi  # noqa: F401
    import prometheus_client  # noqa: F401
    import uvicorn  # noqa: F401
  except ImportError as error:
    raise UserError(
      f'--mode=serve needs FastAPI, uvicorn and prometheus_client ({error}): pip install "xmc_jax[serve]"'
    ) from None
