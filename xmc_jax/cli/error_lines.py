"""Turns exceptions that a user can cause into one line: flags, config files, the machine. Loads no jax."""

import contextlib
import difflib
import errno
import os
import pathlib
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping

from absl import flags, logging

from xmc_jax import experiments, methods, sanitize
from xmc_jax.config import checks
from xmc_jax.distributed import stderr
from xmc_jax.errors import UserError

_OVERRIDE = re.compile(r"--?(no)?config\.([^=]*)")
# OSErrors of the machine; any other OSError may be a bug, and keeps its traceback.
_REFUSED = (
  *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE),
  *(errno.EIO, errno.ENOMEM, errno.ENAMETOOLONG, errno.ELOOP),
)


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
  """Ends the process with one line on standard error if the user can be the cause; bugs keep a traceback."""
  _open_closed_streams()
  logging.set_verbosity(logging.ERROR)
  before = signal.getsignal(signal.SIGINT)
  if before is signal.default_int_handler:  # a background job ignores it, and must keep ignoring it
    signal.signal(signal.SIGINT, _exit_at_once)
  threading.excepthook = _of_thread
  # Texts are UTF-8, whatever the locale is.
  for stream, errors in ((sys.stdin, "replace"), (sys.stdout, "strict")):
    if hasattr(stream, "reconfigure"):
      stream.reconfigure(encoding="utf-8", errors=errors)
  try:
    try:
      yield
    finally:
      sys.stdout.flush()
  except UserError as error:
    sys.exit(f"error: {sanitize.line(str(error))}")
  except KeyboardInterrupt as error:
    if not error.args:
      _exit_at_once()
    sys.exit(130)  # a training has saved and printed that
  except BrokenPipeError:  # `... | head` has stopped reading
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  except Exception as error:
    if line := of_machine(error):
      sys.exit(f"error: {sanitize.line(line)}")
    raise
  finally:
    signal.signal(signal.SIGINT, before)
    threading.excepthook = threading.__excepthook__


def _open_closed_streams() -> None:
  """Opens the null device for closed standard streams (`>&-`): no file opened later may get their number."""
  for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
    if getattr(sys, name) is None:
      setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (open until the end; takes the lowest number)


def _of_thread(failed: threading.ExceptHookArgs) -> None:
  """Handles an error in a library's thread, such as TensorBoard's: one line if the machine failed."""
  if line := of_machine(failed.exc_value):
    stderr.write_line(sanitize.line(line))
  else:
    threading.__excepthook__(failed)


def _exit_at_once(*_: object) -> None:
  """Ends the process at Ctrl-C. Files on disk are always complete, so that nothing needs cleaning up.

  An exception could be lost, or do harm, in libraries that are being imported, and threads in the middle of
  a save would report errors at the interpreter's shutdown.
  """
  stderr.write_line("interrupted; the same command continues a training from its last checkpoint")
  os._exit(130)


def of_flags(argv: list[str], error: Exception, known: Mapping) -> str:
  """Returns one line for an error while flags and the config file were read.

  Args:
    argv: the command line.
    error: the exception.
    known: every config key, dotted, with its default.
  """
  overrides = [found[2] for argument in argv if (found := _OVERRIDE.match(argument))]
  path, text = value_of("config", argv).partition(":")[0], str(error)
  mode = value_of("mode", argv)
  if overrides and not path and mode in ("evaluate", "predict", "serve"):
    return f"--mode={mode} takes its settings from the run's folder; leave --config.{overrides[0]} out"
  if overrides and not path:
    return "--config is missing, but --config.KEY=VALUE changes it; for instance --config=experiments/auto.py"
  if isinstance(error, flags.UnrecognizedFlagError):
    if error.flagname in known:
      return f"{text.partition('. Did')[0]}; did you mean --config.{error.flagname}?"
    return (
      f"{text.replace('. Did you', '; did you').removesuffix(' ?')}{'?' * text.endswith('?')} (see --help)"
    )
  if not isinstance(error, OSError):  # an OSError is about the file
    for key in overrides:
      if key not in known:
        return checks.unknown_key(key, known, methods.SETTINGS)
  for key in overrides:
    if text.startswith(start := f"flag --config.{key}="):
      value = value_of(f"config.{key}", argv) or text.removeprefix(start).partition(": ")[0]
      return checks.type_fault(key, value, known[key]) or text
  if isinstance(error, flags.Error) and "Error whilst parsing config file" not in text:
    if number := re.match(r"flag (--\w+=.*): (could not convert|invalid literal)", text, re.DOTALL):
      such = "a number, such as 0.5" if number[2].startswith("could") else "a whole number, such as 5"
      return f"{number[1]}: expected {such}"
    wrong = re.fullmatch(r"flag (--\w+=)(.*): value should be one of <(.*)>", text, re.DOTALL)
    near = difflib.get_close_matches(wrong[2], wrong[3].split("|"), 1) if wrong else []
    return f"{text}; did you mean {wrong[1]}{near[0]}?" if wrong and near else text
  return of_config_file(path, error)


def of_config_file(path: str, error: BaseException) -> str:
  """Returns one line for an error in a config file, which is code and can raise anything."""
  if isinstance(error, OSError) and error.__cause__ is not None:
    error = error.__cause__  # config_flags raises a failure to load only at the first use
  if isinstance(error, SyntaxError):
    return f"--config: {error.filename}, line {error.lineno}: {error.msg}"
  text = str(error).strip()
  if "Traceback (most recent call last)" in text:  # config_flags puts some tracebacks into the message
    frames, what = re.findall(r'File "(.+?)", line (\d+)', text), text.splitlines()[-1].strip()
  else:
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    what = " ".join(text.split())[:300]
    if isinstance(error, OSError):
      what = what.rpartition("[Errno ")[2].partition("] ")[2] or what
    else:  # the text of a KeyError is only "'x'"
      what = f"{type(error).__name__}: {what}"
  if isinstance(error, OSError) and what.startswith(os.strerror(errno.ENOENT)):
    what += _experiment_like(path)
  own = [line for file, line in frames if path and os.path.abspath(file) == os.path.abspath(path)]
  if own:
    return f"--config: {path}, line {own[-1]}: {what}"
  return f"--config: {what}" if isinstance(error, OSError) else f"--config: {path}: {what}"


def _experiment_like(path: str) -> str:
  """Returns `; did you mean ...?` with the experiment whose name is like the file's; '' if there is none."""
  names = {file.stem: file for file in experiments.FOLDER.glob("*.py")}
  near = difflib.get_close_matches(pathlib.Path(path).stem, names, 1)
  return f"; did you mean --config=experiments/{near[0]}.py?" if near else ""


def of_machine(error: BaseException | None) -> str:
  """Returns one line for missing space, permission or memory; '' for anything else, which may be a bug."""
  if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
    return (
      "out of memory; lower train.batch_size, method.label_chunk, eval.batch_size or data.max_length, "
      "or set --config.encoder.remat=True, and --config.method.uncached_tokens=0 on an accelerator"
    )
  if isinstance(error, RuntimeError) and "home directory" in str(error):  # pathlib's, for '~nobody/data'
    return "a path begins with '~' and an unknown user name, or $HOME is not set; write the path in full"
  if isinstance(error, OSError) and error.errno in _REFUSED:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "; free some space, and give the same command again" if full else ""
    return (f"{error.filename}: " if error.filename else "") + f"{error.strerror}{remedy}"
  return ""


def asks_help(argv: list[str]) -> bool:
  """Returns whether a command line asks for help; absl exits with an error code then."""
  return any(re.fullmatch(r"--?(help\w*|h|\?)", argument) for argument in argv)


def value_of(flag: str, argv: list[str]) -> str:
  """Returns the whole value that a command line gives to a flag; '' if it gives none."""
  for argument, following in zip(argv, [*argv[1:], ""]):
    if found := re.fullmatch(rf"--?{re.escape(flag)}(?:=(.*))?", argument, re.DOTALL):
      return following if found[1] is None else found[1]
  return ""
