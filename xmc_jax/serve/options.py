"""Declares the sizes that the server refuses, how it joins requests, its token, and the words of its page."""

import pathlib
import re
from typing import NamedTuple

from xmc_jax.errors import UserError

_TOKEN = re.compile(r"[!-~]{16,}")


class Limits(NamedTuple):
  """Holds the server's limits.

  Attributes:
    max_body_bytes: of a request's body.
    max_file_bytes: of a PDF or Word file.
    max_texts: texts in a request.
    max_text_length: characters of a text.
    max_k: labels per text; fewer if the run has fewer.
    max_waiting_texts: texts that wait for the model; requests beyond are refused with 503.
    max_batch_texts: texts that the model gets at once.
    max_wait_seconds: how long a text waits for others to join its batch.
  """

  max_body_bytes: int = 1 << 20
  max_file_bytes: int = 20 << 20
  max_texts: int = 64
  max_text_length: int = 10_000
  max_k: int = 100
  max_waiting_texts: int = 512
  max_batch_texts: int = 64
  max_wait_seconds: float = 0.002

  def check(self) -> None:
    """Raises UserError for a limit that cannot work."""
    for name, value in self._asdict().items():
      least = 0.0 if name.endswith("_seconds") else 1
      if not value >= least:
        raise UserError(f"Limits({name}={value!r}): set {least} or more")


class PageText(NamedTuple):
  """Holds the words that a page has in place of the usual; '' and () change nothing.

  Attributes:
    title: in place of the run's name.
    description: a sentence below the title.
    examples: texts to try by a click.
  """

  title: str = ""
  description: str = ""
  examples: tuple[str, ...] = ()


def read_token(path: pathlib.Path) -> str:
  """Returns the token in the first line of a file.

  Raises:
    UserError: the file cannot be read, or the line is no token.
  """
  try:
    with path.open(encoding="utf-8", errors="replace") as file:
      token = file.readline().strip()
  except OSError as error:
    raise UserError(f"--learn_token_file={path}: cannot be read ({error.strerror})") from None
  return check_token(token, f"--learn_token_file={path}: the first line")


def check_token(token: str, name: str) -> str:
  """Returns a token that clients can send and nobody guesses; raises UserError, with its name, for others."""
  if not _TOKEN.fullmatch(token):
    raise UserError(f"{name} must be a token: 16 or more ASCII letters, digits and signs, without spaces")
  return token
