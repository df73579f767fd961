"""Holds the command line: flags, one command for each mode, errors as one line."""
