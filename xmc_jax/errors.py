"""Exceptions for users: shown as one line, never as a traceback."""


class UserError(Exception):
  """Reports an error that the user can fix."""


class ConfigError(UserError):
  """Reports an invalid config value: names the key, its value, the limit and a remedy."""


class UnavailableError(UserError):
  """Reports what may succeed later: another process has a folder, or a file cannot be written."""


class DataError(UserError):
  """Reports unusable input: names the file, the line and what was expected."""
