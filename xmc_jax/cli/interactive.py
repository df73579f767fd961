"""Shows a prompt: the best labels of a text appear below it, and change while it is typed."""

import functools
import shutil
import textwrap

from xmc_jax import sanitize
from xmc_jax.console import say
from xmc_jax.retrieval import explanations
from xmc_jax.runs.best_labels import LabelRequest, answers
from xmc_jax.runs.model import Model

_KEPT = 256  # texts whose labels are remembered: single keys often bring back an earlier text


def show_prompt(model: Model, request: LabelRequest) -> None:
  """Answers texts until Ctrl-D or Ctrl-C; Enter leaves a text and its labels on the screen.

  Args:
    model: ranks the labels.
    request: which labels are shown; reasons stand below each.
  """
  # Imports here what only the prompt needs: it takes two thirds of a second.
  from prompt_toolkit import PromptSession
  from prompt_toolkit.application import get_app
  from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
  from prompt_toolkit.styles import Style

  request = request._replace(k=model.check_k(request.k, request.threshold))
  answer = functools.lru_cache(_KEPT)(functools.partial(labels_as_text, model, request=request))
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


def labels_as_text(model: Model, text: str, request: LabelRequest) -> str:
  """Writes the best labels of a text with scores, one a line, and reasons below; '' for an empty text."""
  if not text.strip():
    return ""
  dataset, ids, scores, names, *reasons = answers(model, [text], request)
  width, lines = max(20, shutil.get_terminal_size().columns - 10), []
  for id_, score, name, *why in zip(
    ids[0].tolist(), scores[0].tolist(), names[0], *(of[0] for of in reasons)
  ):
    if id_ >= 0:
      key = dataset.label_keys[id_]
      shown = name if key == name else f"{name} ({key})"
      lines.append(f"{score:8.3f}  {sanitize.line(shown, width - 2)}")
      lines += [
        f"{'':10}{part}" for reason in why for part in textwrap.wrap(explanations.line(reason), width)
      ]
  return "\n".join(lines)
