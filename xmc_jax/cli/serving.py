"""Runs --mode=serve: opens a run and serves it over HTTP."""

import pathlib
from collections.abc import Sequence

from xmc_jax import data
from xmc_jax import serve as serving
from xmc_jax.console import say
from xmc_jax.runs.model import Model, check_k

_BYTES_OF_CHARACTER = 12  # in JSON, at most: two escapes such as \ud83d


def serve(
  workdir: pathlib.Path,
  *,
  host: str,
  port: int,
  k: int,
  allowed_hosts: Sequence[str],
  scores: str,
  backend: str,
  max_text_length: int,
  threshold: float,
  add_labels: str,
  title: str,
  description: str,
  example: Sequence[str],
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
    max_text_length: characters of a text; longer ones are refused.
    threshold: the least score of a label where a request does not say.
    add_labels: a file of labels to add, as `Model.load` reads it; '' adds none.
    title, description, example: the page's, as in `PageText`.

  Raises:
    UserError: a library is missing, the port is in use, or the run cannot be opened.
  """
  serving.check_installed()
  from xmc_jax.serve import server

  if not add_labels:  # else they count, too
    check_k(k, data.read_manifest(workdir / "data")["counts"]["labels"]["texts"], threshold)
  usual = serving.Limits()
  with server.bound_socket(host, port) as taken:  # before the run is opened, which takes a while
    say(f"opening {workdir}")
    model = Model.load(workdir, scores=scores, backend=backend, warm=False, add_labels=add_labels)
    k = model.check_k(k, threshold)
    application = serving.app(
      model,
      k=k,
      name=workdir.absolute().name,
      limits=serving.Limits(
        max_k=max(k, usual.max_k),
        max_text_length=max_text_length,
        max_body_bytes=max(usual.max_body_bytes, _BYTES_OF_CHARACTER * max_text_length),
      ),
      allowed_hosts=server.known_names(host, taken, allowed_hosts),
      page_text=serving.PageText(title, description, tuple(example)),
      threshold=threshold,
    )
    server.serve(application, taken, host)
