"""Extracts the text of PDF and Word files in a process of its own, which such files may stop or flood."""

import io
import subprocess
import sys
from collections.abc import Iterator

from xmc_jax.errors import DataError, UserError

SUFFIXES = (".pdf", ".docx")
BEGINNINGS = (b"%PDF", b"PK\3\4")  # of PDF files, and of zip files, which those of Word are
_SECONDS, _BYTES = 60, 2 << 30  # of the process
_MISSING = 3  # exit status: the package is not installed


def text_of(content: bytes, name: str) -> str:
  """Returns the text of a PDF or Word file; that of a scanned one is ''.

  Args:
    content: the file.
    name: what messages call it.

  Raises:
    DataError: it cannot be read, such as an encrypted one, or takes longer than a minute.
    UserError: pypdf or python-docx is not installed.
  """
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
  if content.startswith(BEGINNINGS[0]):
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

  resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
  try:
    text = "\n".join(_parts(sys.stdin.buffer.read())).replace("\0", " ")
  except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(_MISSING)
  sys.stdout.buffer.write(text.encode(errors="replace"))


if __name__ == "__main__":
  _main()
