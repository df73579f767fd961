"""Runs --mode=serve: opens a run and serves it over HTTP."""

import pathlib
from collections.abc import Sequence

from xmc_jax import serve as serving
from xmc_jax.console import say


def serve(
  workdir: pathlib.Path,
  host: str,
  port: int,
  k: int,
  allowed_hosts: Sequence[str] = (),
  scores: str = "",
  backend: str = "",
  *,
  page_text: serving.PageText,
) -> None:
  """Serves a run until it is stopped.

  Args:
    workdir: the run's folder.
    host: the address to listen on.
    port: its port; 0 takes one that is free.
    k: labels per text where a request does not say.
    allowed_hosts: names of a proxy before this server.
    scores: what labels are ranked by; '' is the run's own.
    backend: what searches the labels; '' is the run's own.
    page_text: the page's title, description and examples.

  Raises:
    UserError: a library is missing, the port is in use, or the run cannot be opened.
  """
  serving.check_installed()
  from xmc_jax.runs.model import Model
  from xmc_jax.serve import server

  with server.bound_socket(host, port) as taken:  # before the run is opened, which takes a while
    say(f"opening {workdir}")
    model = Model.load(workdir, scores=scores, backend=backend, warm=False)
    model.check_k(k)
    name = workdir.absolute().name
    server.serve(
      model,
      taken,
      name=name,
      host=host,
      k=k,
      limits=serving.Limits(max_k=max(k, serving.Limits().max_k)),
      allowed_hosts=tuple(allowed_hosts),
      page_text=page_text,
    )
