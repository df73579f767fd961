"""Texts of labels behind the names of their ancestors."""

from xmc_jax.data.formats.source import Place

_BELOW = " > "  # between the names of a label and of its parent
# Far more than an encoder reads. Bounds what a short file with a long chain of parents turns into.
LONGEST_PATH = 4096  # letters


def with_ancestors(
  texts: list[str], names: list[str], keys: list[str], parents: list[int], place: Place
) -> list[str]:
  """Returns the text of each label behind the names of its ancestors, as in `animals > dogs`.

  `parents` are the numbers of the labels' parents, -1 for none; keys and place are for messages. A label that
  is its own ancestor is refused, and a path longer than LONGEST_PATH.
  """
  joined = []
  for at, text in enumerate(texts):
    path = [at]
    length = 0
    while (above := parents[path[-1]]) >= 0:
      if above in path:
        cycle = [*path[path.index(above) :], above]
        expected = "a parent that is not below the label itself"
        raise place.refuse(above, expected, _BELOW.join(keys[one] for one in cycle))
      path.append(above)
      length += len(names[above]) + len(_BELOW)
      if length > LONGEST_PATH:
        raise place.refuse(at, f"a path of at most {LONGEST_PATH:,} letters of ancestors", names[path[1]])
    joined.append(_BELOW.join([*(names[one] for one in path[:0:-1]), text]))
  return joined
