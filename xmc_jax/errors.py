"""The exceptions that are meant for users: shown as one line, never as a traceback."""


class UserError(Exception):
  """Something that the user can mend."""


class ConfigError(UserError):
  """A config value that cannot work: names key, value, limit and remedy."""


class DataError(UserError):
  """Input that cannot be used: names file, line and what was expected."""
