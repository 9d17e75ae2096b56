"""Every error that Penstock raises on purpose.

```
PenstockError                 base: code, exit_status, path, offset_bytes, found, expected, hint
├── FormatError               the bytes on disk are not what their format says
│   ├── Truncated             the file ends too early
│   ├── Corrupt               a value contradicts another, or its format
│   ├── Unsupported           valid, but a variant that Penstock does not read
│   ├── TooLarge              a size beyond the format's limits, or beyond what the file can hold
│   └── CookError             a function could not make a sample of the data it was given
├── NotFound                  no such file, sample or name (also FileNotFoundError and KeyError)
│   └── Excluded              a sample that the dataset's exclude list takes out
├── ConfigError               an option or an argument that can't work (also ValueError)
├── ResumeMismatch            a saved state does not belong to this stream
├── UnsafeData                data that would run code or leave its folder
├── MissingExtra              an optional package is not installed (also ImportError)
├── Unreachable               a remote store does not answer, also after several tries (also OSError)
│   └── Denied                it refuses these credentials (also PermissionError)
└── PrepareError              a preparation could not continue; what it finished is kept
```

A message says what, where, found and expected, and what to do. Secrets of URLs are in none of them.
"""

from __future__ import annotations

import os
from typing import ClassVar

from penstock._paths_as_given import path_as_given
from penstock._printable import printable, shortened, shortened_part
from penstock._secrets import redact


class PenstockError(Exception):
    """Base of all errors raised on purpose.

    Attributes:
        code: stable name of the kind of error, for scripts.
        exit_status: exit status of the command line.
        path: the file or folder, if there is one.
        offset_bytes: place in the file, from its start.
        found: what is there.
        expected: what should be there.
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
    """The bytes on disk are not what their format says."""

    code = "format"
    exit_status = 4


class Truncated(FormatError):
    """A file ends before its own header or index says so."""

    code = "truncated"
    exit_status = 5


class Corrupt(FormatError):
    """A value in a file contradicts another, or its format."""

    code = "corrupt"
    exit_status = 6


class Unsupported(FormatError):
    """A valid file of a variant that Penstock does not read, or an ability that a format lacks."""

    code = "unsupported"
    exit_status = 7


class TooLarge(FormatError):
    """A size or a value beyond the limits of the format, or beyond what the file can hold."""

    code = "too-large"
    exit_status = 8


class CookError(FormatError):
    """A function could not make a sample of the data it was given. The loader's `on_error` says what happens."""

    code = "cook"
    exit_status = 17


class NotFound(PenstockError, FileNotFoundError, KeyError):
    """No such file, sample or name."""

    code = "not-found"
    exit_status = 9


class Excluded(NotFound):
    """A sample that the dataset's exclude list takes out. Streams and loaders put another one in its place."""

    code = "excluded"
    exit_status = 19


class ConfigError(PenstockError, ValueError):
    """An option or an argument that can't work as given."""

    code = "config"
    exit_status = 10


class ResumeMismatch(PenstockError):
    """A saved state does not belong to this stream."""

    code = "resume-mismatch"
    exit_status = 11


class UnsafeData(PenstockError):
    """Data that would run code, leave its folder, or take more memory than it holds."""

    code = "unsafe-data"
    exit_status = 12


class MissingExtra(PenstockError, ImportError):
    """An optional package is not installed."""

    code = "missing-extra"
    exit_status = 13


class PrepareError(PenstockError):
    """A preparation could not continue. What it had finished is kept, and nothing half-made is visible."""

    code = "prepare"
    exit_status = 14


class Unreachable(PenstockError, OSError):
    """A remote store that does not answer as it should, also after several tries."""

    code = "unreachable"
    exit_status = 15


class Denied(Unreachable, PermissionError):
    """A remote store that refuses these credentials."""

    code = "denied"
    exit_status = 16
