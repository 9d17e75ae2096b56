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

from penstock._printable import path_as_given, printable, shortened, shortened_part
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

    Examples:
        >>> import penstock as ps
        >>> from penstock.errors import PenstockError
        >>> try:
        ...     ps.open("missing.pbin")
        ... except PenstockError as error:
        ...     print(error)
        ...     print(error.code, error.exit_status, error.hint)
        missing.pbin: no such file or folder. Check the path
        not-found 9 Check the path
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
            # A command in a hint uses the same path as the message.
            hint = self.hint if self.path is None or given is None else self.hint.replace(self.path, given)
            text += f". {shortened_part(hint)}"
        return redact(printable(text))

    def __setattr__(self, name: str, value: object) -> None:
        # Secrets of URLs are removed from all fields, also from messages of other libraries.
        if name == "found" and isinstance(value, Exception):
            value = str(value)
        super().__setattr__(name, redact(value) if isinstance(value, str) else value)

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders in preparations: keyword fields must survive pickling. `path` is explicit because
        # ImportError has its own, outside of `__dict__`.
        return (_rebuild, (type(self), self.what, {**self.__dict__, "path": self.path}))


def _rebuild(kind: type[PenstockError], what: str, fields: dict[str, object]) -> PenstockError:
    error = kind(what)
    for name, value in fields.items():
        setattr(error, name, value)
    return error


class FormatError(PenstockError):
    """Data on disk violates its format.

    Examples:
        >>> import penstock as ps
        >>> from penstock.errors import FormatError
        >>> try:
        ...     ps.open("docs.jsonl", format="pbin")
        ... except FormatError as error:
        ...     print(error.code, error.offset_bytes, error.expected)
        corrupt 8 1, 2 or 4
    """

    code = "format"
    exit_status = 4


class Truncated(FormatError):
    """A file is shorter than its header or index requires.

    Examples:
        >>> from pathlib import Path
        >>> import penstock as ps
        >>> from penstock.errors import Truncated
        >>> written = Path("short.pbin").write_bytes(Path("corpus.pbin").read_bytes()[:40])
        >>> try:
        ...     ps.open("short.pbin")
        ... except Truncated as error:
        ...     print(error.code, Path(error.path).name, error.found)
        truncated short.pbin 40 bytes
    """

    code = "truncated"
    exit_status = 5


class Corrupt(FormatError):
    r"""A value in a file contradicts another value, or its format.

    Examples:
        >>> from pathlib import Path
        >>> import penstock as ps
        >>> from penstock.errors import Corrupt
        >>> written = Path("bad.jsonl").write_text('{"text": "a"}\nnot JSON\n')
        >>> try:
        ...     ps.index("bad.jsonl")
        ... except Corrupt as error:
        ...     print(error.code, error.what, error.offset_bytes)
        corrupt line 2 is not valid JSON 14
    """

    code = "corrupt"
    exit_status = 6


class Unsupported(FormatError):
    """A valid file of a variant that Penstock doesn't read, or a feature that a format lacks.

    Examples:
        >>> import penstock as ps
        >>> from penstock.errors import Unsupported
        >>> try:
        ...     ps.convert("chat-mds", "chat.pbin")
        ... except Unsupported as error:
        ...     print(error.code, error.what)
        unsupported pbin can't hold these samples
    """

    code = "unsupported"
    exit_status = 7


class TooLarge(FormatError):
    """A size or value exceeds the limits of the format, or of the file.

    Examples:
        >>> import penstock as ps
        >>> from penstock.errors import TooLarge
        >>> try:
        ...     with ps.create("ids.pbin", format="pbin", token_bytes=2) as writer:
        ...         writer.write({"tokens": [70_000]})
        ... except TooLarge as error:
        ...     print(error.code, error.found, error.expected)
        too-large 70000 0 to 65535
    """

    code = "too-large"
    exit_status = 8


class CookError(FormatError):
    """A function couldn't make a sample from its input. The loader's `on_error` decides what happens.

    Examples:
        >>> import penstock as ps
        >>> from penstock.cook import cook
        >>> from penstock.errors import CookError
        >>> def shorten(sample):
        ...     return {"text": sample["txt"][:10]}
        >>> cooked = cook(ps.open("chat-mds"), shorten)
        >>> try:
        ...     cooked[0]
        ... except CookError as error:
        ...     print(error.code, error.found)
        cook KeyError: 'txt'
    """

    code = "cook"
    exit_status = 17


class NotFound(PenstockError, FileNotFoundError, KeyError):
    """There is no such file, sample or name.

    Examples:
        >>> import penstock as ps
        >>> from penstock.errors import NotFound
        >>> try:
        ...     ps.open("pictures").index_of("999")
        ... except NotFound as error:
        ...     print(error.code, error.what)
        not-found no sample with the key '999'
    """

    code = "not-found"
    exit_status = 9


class Excluded(NotFound):
    """The sample is on the dataset's exclude list. Streams and loaders substitute another one.

    Examples:
        >>> import penstock as ps
        >>> from penstock.errors import Excluded
        >>> report = ps.exclude("chat-mds", indices=[3], reason="request 17")
        >>> try:
        ...     ps.open("chat-mds")[3]
        ... except Excluded as error:
        ...     print(error.code, error.what)
        excluded sample 3 is excluded (request 17)
    """

    code = "excluded"
    exit_status = 19


class ConfigError(PenstockError, ValueError):
    """An option or argument is invalid as given.

    Examples:
        >>> import penstock as ps
        >>> from penstock.errors import ConfigError
        >>> try:
        ...     ps.Chunk(0)
        ... except ConfigError as error:
        ...     print(error.code, error.found, error.expected)
        config length 0 1 or more
    """

    code = "config"
    exit_status = 10


class ResumeMismatch(PenstockError):
    """A saved state doesn't belong to this stream.

    Examples:
        >>> import penstock as ps
        >>> from penstock.errors import ResumeMismatch
        >>> chats = ps.open("chat-mds")
        >>> state = ps.Loader(ps.Shuffle(chats, seed=1), global_batch=2).state_dict()
        >>> try:
        ...     ps.Loader(ps.Shuffle(chats, seed=2), global_batch=2).load_state_dict(state)
        ... except ResumeMismatch as error:
        ...     print(error.code, error.hint)
        resume-mismatch Pass accept=['recipe'] to resume with the current data
    """

    code = "resume-mismatch"
    exit_status = 11


class UnsafeData(PenstockError):
    """Data would run code, leave its directory, or take more memory than it contains.

    Examples:
        >>> import penstock as ps
        >>> from penstock.errors import UnsafeData
        >>> with ps.create("pickled", format="mds", columns={"x": "pkl"}) as writer:
        ...     writer.write({"x": [1]})
        >>> try:
        ...     ps.open("pickled")[0]
        ... except UnsafeData as error:
        ...     print(error.code, error.hint)
        unsafe-data Open with --trust (trust=True) if you trust its source, ...
    """

    code = "unsafe-data"
    exit_status = 12


class MissingExtra(PenstockError, ImportError):
    """An optional package isn't installed.

    Examples:
        >>> from penstock.errors import MissingExtra
        >>> try:
        ...     import penstock.load.jax  # on a machine without JAX
        ... except MissingExtra as error:
        ...     print(error.code, error.hint)
        missing-extra Install the extra 'jax' with: pip install jax
    """

    code = "missing-extra"
    exit_status = 13


class PrepareError(PenstockError):
    """A preparation couldn't continue. Finished work is kept, and no partial output is visible.

    Examples:
        >>> import penstock as ps
        >>> from penstock.errors import PrepareError
        >>> try:
        ...     ps.pack("docs.jsonl", "x.pbin", tokenizer="tokenizer.json", eos="none", field="title", on_error="skip")
        ... except PrepareError as error:
        ...     print(error.code, error.exit_status)
        prepare 14
    """

    code = "prepare"
    exit_status = 14


class Unreachable(PenstockError, OSError):
    """A remote store doesn't respond as expected, even after several tries.

    Examples:
        >>> from penstock.errors import Unreachable
        >>> from penstock.store import LocalStore
        >>> from penstock.testing import LatencyStore
        >>> try:
        ...     LatencyStore(LocalStore(), delay_s=0, failures=1).get("docs.jsonl")
        ... except Unreachable as error:
        ...     print(error.code, error.path)
        unreachable docs.jsonl
    """

    code = "unreachable"
    exit_status = 15


class Denied(Unreachable, PermissionError):
    """A remote store rejects these credentials.

    Examples:
        >>> import penstock as ps
        >>> from penstock.errors import Denied
        >>> from penstock.testing import FileServer
        >>> with FileServer({"corpus.pbin": b""}) as server:
        ...     server.always = "403"
        ...     try:
        ...         ps.open(f"{server.url}/corpus.pbin")
        ...     except Denied as error:
        ...         print(error.code, error.what)
        denied the store rejected the credentials
    """

    code = "denied"
    exit_status = 16
