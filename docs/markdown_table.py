"""Markdown tables of cells, for the scripts that fill the tables in docs/."""

from collections.abc import Iterable, Sequence


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  """Returns a table of these columns' titles and rows of cells."""
  lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
  lines += [f"| {' | '.join(cells)} |" for cells in rows]
  return "\n".join(lines) + "\n"
