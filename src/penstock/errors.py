"""Errors that Penstock raises on purpose.

```
PenstockError                 base: code, exit_status, path, offset_bytes, found, expected, hint
├── FormatError               data on disk violates its format
│   ├── Truncated             the file is too short
│   ├── Corrupt               a value contradicts another value, or its format
│   ├── Unsupported           a valid variant that Penstock doesn't read, or a missing feature
│   ├── TooLarge              a size or value exceeds the limits of the format, or of the file
│   └── CookError             a function couldn't make a sample from its input
├── NotFound                  no such file, sample or name (also FileNotFoundError and KeyError)
│   └── Excluded              the sample is on the dataset's exclude list
├── ConfigError               an invalid option or argument (also ValueError)
├── ResumeMismatch            a saved state doesn't belong to this stream
├── UnsafeData                data would run code or leave its directory
├── MissingExtra              an optional package isn't installed (also ImportError)
├── Unreachable               a remote store doesn't respond, even after several tries (also OSError)
│   └── Denied                it rejects these credentials (also PermissionError)
└── PrepareError              a preparation couldn't continue; finished work is kept
```

A message contains the problem, the place, the found and expected values, and what to do. It never contains secrets of
URLs.
"""

from __future__ import annotations

import os
from typing import ClassVar

from penstock._paths_as_given import path_as_given
from penstock._printable import printable, shortened, shortened_part
from penstock._secrets import redact


class PenstockError(Exception):
    """Base class of all errors that Penstock raises on purpose.

    Attributes:
        code: stable name of the kind of error, for scripts.
        exit_status: exit status of the command line.
        path: the file or directory, if there is one.
        offset_bytes: offset in the file.
        found: the actual value.
        expected: the expected value.
        hint: what to do about it.
    """

    code: ClassVar[str] = "penstock"
    exit_status: ClassVar[int] = 3

    def __init__(
        self,
        what: str,
        *,
        path: str | os.PathLike[str] | None = None,
        offset_bytes: int | None = None,
        found: object = None,
        expected: object = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(redact(what))
        self.what = what
        self.path = None if path is None else os.fspath(path)
        self.offset_bytes = offset_bytes
        self.found = found
        self.expected = expected
        self.hint = hint

    def __str__(self) -> str:
        given = None if self.path is None else path_as_given(self.path)
        where = "" if given is None else f"{shortened(given)}: "
        place = "" if self.offset_bytes is None else f" at byte {self.offset_bytes}"
        details = [
            f"{label} {shortened_part(redact(str(value)))}"
            for label, value in (("found", self.found), ("expected", self.expected))
            if value is not None
        ]
        text = f"{where}{shortened_part(self.what)}{place}"
        if details:
            text += ": " + ", ".join(details)
        if self.hint is not None:
            # A command in a hint names the same path as the message does.
            hint = self.hint if self.path is None or given is None else self.hint.replace(self.path, given)
            text += f". {shortened_part(hint)}"
        return redact(printable(text))

    def __setattr__(self, name: str, value: object) -> None:
        # No field holds the secrets of a URL, whoever sets it; neither does what another library says.
        if name == "found" and isinstance(value, Exception):
            value = str(value)
        super().__setattr__(name, redact(value) if isinstance(value, str) else value)

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders in preparations: keyword fields must survive pickling.
        # `path` is named because ImportError keeps one of its own, outside of `__dict__`.
        return (_rebuild, (type(self), self.what, {**self.__dict__, "path": self.path}))


def _rebuild(kind: type[PenstockError], what: str, fields: dict[str, object]) -> PenstockError:
    error = kind(what)
    for name, value in fields.items():
        setattr(error, name, value)
    return error


class FormatError(PenstockError):
    """Data on disk violates its format."""

    code = "format"
    exit_status = 4


class Truncated(FormatError):
    """A file is shorter than its header or index requires."""

    code = "truncated"
    exit_status = 5


class Corrupt(FormatError):
    """A value in a file contradicts another value, or its format."""

    code = "corrupt"
    exit_status = 6


class Unsupported(FormatError):
    """A valid file of a variant that Penstock doesn't read, or a feature that a format lacks."""

    code = "unsupported"
    exit_status = 7


class TooLarge(FormatError):
    """A size or value exceeds the limits of the format, or of the file."""

    code = "too-large"
    exit_status = 8


class CookError(FormatError):
    """A function couldn't make a sample from its input. The loader's `on_error` decides what happens."""

    code = "cook"
    exit_status = 17


class NotFound(PenstockError, FileNotFoundError, KeyError):
    """There is no such file, sample or name."""

    code = "not-found"
    exit_status = 9


class Excluded(NotFound):
    """The sample is on the dataset's exclude list. Streams and loaders substitute another one."""

    code = "excluded"
    exit_status = 19


class ConfigError(PenstockError, ValueError):
    """An option or argument is invalid as given."""

    code = "config"
    exit_status = 10


class ResumeMismatch(PenstockError):
    """A saved state doesn't belong to this stream."""

    code = "resume-mismatch"
    exit_status = 11


class UnsafeData(PenstockError):
    """Data would run code, leave its directory, or take more memory than it contains."""

    code = "unsafe-data"
    exit_status = 12


class MissingExtra(PenstockError, ImportError):
    """An optional package isn't installed."""

    code = "missing-extra"
    exit_status = 13


class PrepareError(PenstockError):
    """A preparation couldn't continue. Finished work is kept, and no partial output is visible."""

    code = "prepare"
    exit_status = 14


class Unreachable(PenstockError, OSError):
    """A remote store doesn't respond as expected, even after several tries."""

    code = "unreachable"
    exit_status = 15


class Denied(Unreachable, PermissionError):
    """A remote store rejects these credentials."""

    code = "denied"
    exit_status = 16
