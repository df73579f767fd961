"""Extracts the text of PDF and Word files in a process of its own: a hostile file stops that alone."""

import contextlib
import functools
import importlib.util
import io
import subprocess
import sys
from collections.abc import Iterator

SUFFIXES = (".pdf", ".docx")
BEGINNINGS = (b"%PDF", b"PK\3\4")  # of PDF files, and of zip files, which those of Word are
_SECONDS, _BYTES = 20, 2 << 30  # of the process
_CHARACTERS = 4 << 20  # of a text; the rest is left out
_MISSING = 3  # exit status: the package is not installed


@functools.cache  # asked for each file of a folder
def is_installed() -> bool:
  """Returns whether the packages are there that read both."""
  return all(map(importlib.util.find_spec, ("pypdf", "docx")))


def text_of(content: bytes, name: str) -> str:
  """Returns the text of a PDF or Word file; that of a scanned one is ''.

  Raises:
    DataError: it cannot be read, such as an encrypted one, or takes too long.
    UserError: pypdf or python-docx is not installed.
  """
  from xmc_jax.errors import DataError, UserError  # the process of its own may not find this package

  command = [sys.executable, "-P", __file__]  # -P: modules beside this file are not those of packages
  try:
    ran = subprocess.run(command, input=content, capture_output=True, timeout=_SECONDS)
  except subprocess.TimeoutExpired:
    raise DataError(f"{name}: its text takes longer than {_SECONDS} s; convert it to plain text") from None
  why = ran.stderr.decode(errors="replace").strip().rpartition("\n")[2] or f"exit status {ran.returncode}"
  if ran.returncode == _MISSING:
    needed = "PDF and Word files need pypdf and python-docx"
    raise UserError(f'{name}: {needed} ({why}): pip install "xmc_jax[documents]"')
  if ran.returncode:
    raise DataError(f"{name}: expected a PDF or Word file ({why:.200})")
  return ran.stdout.decode()


def _parts(content: bytes) -> Iterator[str]:
  """Yields the pages of a PDF file, or the paragraphs and rows of tables of a Word file."""
  if BEGINNINGS[0] in content[:1024]:
    import pypdf

    yield from (page.extract_text() for page in pypdf.PdfReader(io.BytesIO(content)).pages)
    return
  import docx

  for block in docx.Document(io.BytesIO(content)).iter_inner_content():
    if isinstance(block, docx.table.Table):
      yield from ("\t".join(cell.text for cell in row.cells) for row in block.rows)
    else:
      yield block.text


def _main() -> None:
  import resource

  for limit, most in ((resource.RLIMIT_AS, _BYTES), (resource.RLIMIT_CPU, _SECONDS)):
    with contextlib.suppress(ValueError, OSError):  # macOS takes no limit of memory; a lower one stays
      resource.setrlimit(limit, (most, most))
  try:
    text = "\n".join(_parts(sys.stdin.buffer.read())).replace("\0", " ")
  except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(_MISSING)
  sys.stdout.buffer.write(text[:_CHARACTERS].encode(errors="replace"))


if __name__ == "__main__":
  _main()
