"""Exceptions that a user can cause, as one line: flags, config files, the machine. Knows nothing of jax."""

import contextlib
import errno
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping

from absl import flags, logging

from xmc_jax import methods, sanitize
from xmc_jax.config import checks
from xmc_jax.distributed import stderr
from xmc_jax.errors import UserError

_OVERRIDE = re.compile(r"--?(no)?config\.([^=]*)")
# What the machine refuses; whatever else an OSError says may be a bug, and keeps its traceback.
_REFUSED = {
  getattr(errno, name)
  for name in (
    *("EACCES", "EPERM", "EROFS", "ENOSPC", "EDQUOT", "EMFILE", "ENFILE", "EIO", "ENOMEM"),
    *("ENAMETOOLONG", "ELOOP"),
  )
  if hasattr(errno, name)
}


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
  """Ends the process with one line on standard error for what a user can cause; bugs keep their traceback."""
  logging.set_verbosity(logging.ERROR)
  before = signal.getsignal(signal.SIGINT)
  if before is signal.default_int_handler:  # a job in the background ignores it, and goes on doing so
    signal.signal(signal.SIGINT, _leave_at_once)
  threading.excepthook = _of_thread
  # Texts are UTF-8 whatever the locale says.
  for stream, errors in ((sys.stdin, "replace"), (sys.stdout, "strict")):
    if hasattr(stream, "reconfigure"):
      stream.reconfigure(encoding="utf-8", errors=errors)
  try:
    try:
      yield
    finally:
      if sys.stdout:
        sys.stdout.flush()
  except UserError as error:
    sys.exit(f"error: {sanitize.line(str(error))}")
  except KeyboardInterrupt as error:
    if not error.args:
      _leave_at_once()
    sys.exit(130)  # a training has saved, and said so
  except BrokenPipeError:  # `... | head`: nobody reads any more
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  except Exception as error:
    if line := of_machine(error):
      sys.exit(f"error: {sanitize.line(line)}")
    raise
  finally:
    signal.signal(signal.SIGINT, before)
    threading.excepthook = threading.__excepthook__


def _of_thread(failed: threading.ExceptHookArgs) -> None:
  """A library's thread, such as TensorBoard's, may be the one that the machine refuses something."""
  if line := of_machine(failed.exc_value):
    stderr.write_line(sanitize.line(line))
  else:
    threading.__excepthook__(failed)


def _leave_at_once(*_: object) -> None:
  """Ctrl-C. What is on disk is always good to go on from, so nothing needs to be put in order.

  An exception instead would be lost, or worse, in libraries that are being imported, and threads in the
  middle of a save would complain of the interpreter's shutdown.
  """
  stderr.write_line("interrupted; a training goes on from its last checkpoint by the same command")
  os._exit(130)


def of_flags(argv: list[str], error: Exception, known: Mapping) -> str:
  """Returns one line for what went wrong while flags and the config file were read.

  Args:
    argv: the command line.
    error: what was raised.
    known: every config key, dotted, with its default.
  """
  overrides = [found[2] for argument in argv if (found := _OVERRIDE.match(argument))]
  path, text = config_argument(argv).partition(":")[0], str(error)
  used = {"--mode=evaluate", "--mode=predict"} & set(argv)
  if overrides and not path and used:
    return f"{used.pop()} takes its settings from the run's folder; leave --config.{overrides[0]} out"
  if overrides and not path:
    return "--config is missing, which --config.KEY=VALUE changes; for instance --config=experiments/dexml.py"
  if isinstance(error, flags.UnrecognizedFlagError):
    return (
      f"{text.replace('. Did you', '; did you').removesuffix(' ?')}{'?' * text.endswith('?')} (see --help)"
    )
  if not isinstance(error, OSError):  # where the file was read
    for key in overrides:
      if key not in known:
        return checks.unknown_key(key, known, methods.SETTINGS)
  for key in overrides:
    if text.startswith(start := f"flag --config.{key}="):
      value = _value_of(key, argv) or text.removeprefix(start).partition(": ")[0]
      return checks.type_fault(key, value, known[key]) or text
  if isinstance(error, (MemoryError, RecursionError)):  # Python's parser, of too many brackets
    for key in overrides:
      if isinstance(known[key], tuple):
        return checks.type_fault(key, _value_of(key, argv), known[key])
  if isinstance(error, flags.Error) and "Error whilst parsing config file" not in text:
    return text
  return of_config_file(path, error)


def of_config_file(path: str, error: BaseException) -> str:
  """What a config file, which is code and can raise anything, did."""
  if isinstance(error, OSError) and error.__cause__ is not None:
    error = error.__cause__  # config_flags puts off its failure to load until the first use
  if isinstance(error, SyntaxError):
    return f"--config: {error.filename}, line {error.lineno}: {error.msg}"
  text = str(error).strip()
  if "Traceback (most recent call last)" in text:  # config_flags packs some exceptions into their text
    frames, what = re.findall(r'File "(.+?)", line (\d+)', text), text.splitlines()[-1].strip()
  else:
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    what = " ".join(text.split())[:300]
    if isinstance(error, OSError):
      what = what.rpartition("[Errno ")[2].partition("] ")[2] or what
    else:  # a KeyError's text alone is "'x'"
      what = f"{type(error).__name__}: {what}"
  if isinstance(error, ModuleNotFoundError) and error.name == "experiments":
    what += "; run the command in the project's folder, or put that folder on PYTHONPATH"
  own = [line for file, line in frames if path and os.path.abspath(file) == os.path.abspath(path)]
  if own:
    return f"--config: {path}, line {own[-1]}: {what}"
  return f"--config: {what}" if isinstance(error, OSError) else f"--config: {path}: {what}"


def of_machine(error: BaseException | None) -> str:
  """What the machine refused: space, permission, memory; '' for anything else, which may be a bug."""
  if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
    return (
      "out of memory; lower train.batch_size, method.label_chunk, eval.batch_size or data.max_length, "
      "or set --config.encoder.remat=True"
    )
  if isinstance(error, RuntimeError) and "home directory" in str(error):  # pathlib's, of '~nobody/data'
    return "a path begins with '~' and a name that no user has here, or $HOME is not set; write it out"
  if isinstance(error, OSError) and error.errno in _REFUSED:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "; free some space, and the same command goes on from what is saved" if full else ""
    return (f"{error.filename}: " if error.filename else "") + f"{error.strerror}{remedy}"
  return ""


def asks_help(argv: list[str]) -> bool:
  """Whether a command line asks for help, which absl answers as if that were an error."""
  return any(re.fullmatch(r"--?(help\w*|h|\?)", argument) for argument in argv)


def _value_of(key: str, argv: list[str]) -> str:
  """What a command line sets a key to, whole; '' where it has none."""
  for argument, following in zip(argv, [*argv[1:], ""]):
    if found := re.fullmatch(rf"--?config\.{re.escape(key)}(?:=(.*))?", argument, re.DOTALL):
      return following if found[1] is None else found[1]
  return ""


def config_argument(argv: list[str]) -> str:
  """Returns what --config names, FILE.py or FILE.py:PRESET; '' if there is none."""
  for argument, following in zip(argv, [*argv[1:], ""]):
    if found := re.fullmatch(r"--?config(?:=(.*))?", argument):
      return following if found[1] is None else found[1]
  return ""
