"""The errors a user can meet.

    StepscopeError (exit 2)
    ├── UsageError          the command line asks for something that makes no sense
    └── InputError          a path that cannot be read, or holds nothing we can read
        └── FormatError     the bytes are there, but they are not a trace

A message says what is wrong, where (path, rank, field) and what to do next. A broken invariant of
our own is an `assert`, not one of these.
"""


class StepscopeError(Exception):
    """Something the user can fix; caught once, in `main()`."""

    exit_code = 2


class UsageError(StepscopeError):
    """The options contradict each other or name something that does not exist."""


class InputError(StepscopeError):
    """A path cannot be read, or holds nothing to read."""


class FormatError(InputError):
    """The file can be read, but it is not a format we know."""
