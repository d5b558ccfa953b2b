"""Errors that a user can act on. Each class carries the exit code of the command line."""


class AutotuneError(Exception):
    """Base of every error that ends a command with a message instead of a traceback.

    The message says what is wrong, the offending value, what is allowed and what to do next.
    """

    exit_code = 3


class UsageError(AutotuneError, ValueError):
    """A wrong argument, sweep file or run folder."""

    exit_code = 2


class EnvironmentFailedError(AutotuneError):
    """The machine could not do what a sweep needs, whatever the setup."""

    exit_code = 3
