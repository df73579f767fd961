"""Shows a prompt: the best labels of a text appear below it, and change while it is typed."""

import functools
import math
import shutil
import textwrap

import numpy as np

from xmc_jax import sanitize
from xmc_jax.console import say
from xmc_jax.retrieval import explanations
from xmc_jax.runs.model import Model, Threshold, is_given

_KEPT = 256  # texts whose labels are remembered: single keys often bring back an earlier text


def show_prompt(model: Model, k: int, explain: bool = False, threshold: Threshold = -math.inf) -> None:
  """Answers texts until Ctrl-D or Ctrl-C; Enter leaves a text and its labels on the screen.

  Args:
    model: ranks the labels.
    k: how many labels are shown.
    explain: show the reasons below each label.
    threshold: the least score of a label, or BEST_F1.
  """
  # Imports here what only the prompt needs: it takes two thirds of a second.
  from prompt_toolkit import PromptSession
  from prompt_toolkit.application import get_app
  from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
  from prompt_toolkit.styles import Style

  k = model.check_k(k, threshold)
  answer = functools.lru_cache(_KEPT)(
    functools.partial(labels_as_text, model, k=k, explain=explain, threshold=threshold)
  )
  say(f"{len(model.labels):,} labels; type a text to see its best ones; Enter keeps them, Ctrl-D ends")
  answer("a first text, so that all is compiled")
  keys = KeyBindings()

  @keys.add("enter")
  @keys.add("c-j")
  def _(event: KeyPressEvent) -> None:
    """Ends the text; adds a line break instead if letters wait behind it, as in a paste."""
    waiting = (press.key for press in event.key_processor.input_queue if press.key not in ("c-m", "c-j"))
    if len(next(waiting, "")) == 1:
      event.current_buffer.newline(copy_margin=False)
    else:
      event.current_buffer.validate_and_handle()

  session: PromptSession[str] = PromptSession(
    "text> ",
    key_bindings=keys,
    bottom_toolbar=lambda: answer(get_app().current_buffer.text),
    style=Style.from_dict({"bottom-toolbar": "noreverse"}),
  )
  while True:
    try:
      text = session.prompt()
    except (EOFError, KeyboardInterrupt):
      return
    if text.strip():
      print(answer(text), end="\n\n")


def labels_as_text(
  model: Model, text: str, k: int, explain: bool = False, threshold: Threshold = -math.inf
) -> str:
  """Writes the k best labels of a text with scores, one a line, and reasons below; '' for an empty text."""
  if not text.strip():
    return ""
  more = {"explain": True} if explain else {}
  ids, scores, names, *reasons = model.predict([text], k, **more)
  given = np.where(is_given(scores, threshold), ids, -1)[0].tolist()
  width, lines = max(20, shutil.get_terminal_size().columns - 10), []
  for id_, score, name, *why in zip(given, scores[0].tolist(), names[0], *(of[0] for of in reasons)):
    if id_ >= 0:
      shown = name if model.keys[id_] == name else f"{name} ({model.keys[id_]})"
      lines.append(f"{score:8.3f}  {_cut(sanitize.line(shown), width)}")
      lines += [
        f"{'':10}{part}" for reason in why for part in textwrap.wrap(explanations.line(reason), width)
      ]
  return "\n".join(lines)


def _cut(name: str, width: int) -> str:
  return name if len(name) < width else name[: width - 2] + "…"
