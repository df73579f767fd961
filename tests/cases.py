"""One test over many cases: a loop that runs them all, and then names those that fail."""

import functools
import inspect

import pytest


def each_case(names: str | tuple[str, ...], cases, ids=None):
  """Makes one test of all cases, where `pytest.mark.parametrize` makes a test of each.

  For cheap assertions over files, keys, presets and texts. Decorators may be stacked. Every case has a
  `tmp_path` and a `monkeypatch` of its own; other fixtures are shared, so no case may change them.

  Args:
    names: the arguments that a case fills, in a tuple or with commas between them.
    cases: a value for each case, or a tuple of values where there are several names; `pytest.param` too.
    ids: what cases are called in messages: a name for each, or a function of a value; else their values.
  """
  names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
  cases = [_values(case, len(names)) for case in cases]
  if not cases:
    raise ValueError("no cases: the test would assert nothing")
  called = [_called(values, ids) for values in cases] if ids is None or callable(ids) else list(ids)

  def decorate(function):
    signature = inspect.signature(function)
    fixtures = [kind for name, kind in signature.parameters.items() if name not in names]

    @functools.wraps(function)
    def test(**given):
      failed = {}
      for number, (case, values) in enumerate(zip(called, cases, strict=True)):
        with pytest.MonkeyPatch.context() as monkeypatch:
          try:
            function(**_own(given, number, monkeypatch), **dict(zip(names, values, strict=True)))
          except (Exception, pytest.fail.Exception) as error:
            error.add_note(f"case: {case}")
            failed[f"{number}: {case}"] = error
      if failed:
        raise BaseExceptionGroup(
          f"{len(failed)} of {len(cases)} cases failed ({'; '.join(failed)})", list(failed.values())
        )

    del test.__wrapped__  # or pytest would look for fixtures of the cases' names
    test.__signature__ = signature.replace(parameters=fixtures)
    return test

  return decorate


def _values(case, count: int) -> tuple:
  """Returns a case's values, one for each name."""
  if isinstance(case, type(pytest.param())):
    if case.marks:
      raise ValueError(f"{case}: a case of a loop has no marks")
    return tuple(case.values)
  return (case,) if count == 1 else tuple(case)


def _own(given: dict, number: int, monkeypatch) -> dict:
  """Returns the fixtures, with a case's own folder and its own patches in place of shared ones."""
  own = dict(given)
  if "tmp_path" in own:
    own["tmp_path"] = own["tmp_path"] / str(number)
    own["tmp_path"].mkdir()
  if "monkeypatch" in own:
    own["monkeypatch"] = monkeypatch
  return own


def _called(values: tuple, of_value) -> str:
  """Returns a case as a message names it: its values, short, and functions by their names."""
  if of_value is None:
    of_value = lambda value: getattr(value, "__name__", None) or repr(value)
  shown = ", ".join(str(of_value(value)) for value in values)
  return shown if len(shown) <= 100 else f"{shown[:97]}..."
