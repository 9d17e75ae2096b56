"""What all writers share: the end of a `with` block commits, an exception in it leaves nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Protocol

from penstock.errors import ConfigError
from penstock.types import Manifest


class OpenWriter(Protocol):
    """A writer that knows whether it was committed or aborted."""

    _open: bool

    def commit(self) -> Manifest: ...

    def abort(self) -> None: ...


def leave(
    writer: OpenWriter, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None, /
) -> None:
    """The `__exit__` of a writer: commit unless that was done, abort after an exception."""
    if kind is not None:
        writer.abort()
    elif writer._open:  # pyright: ignore[reportPrivateUsage]
        writer.commit()


def require_open(is_open: bool, path: str) -> None:
    """Raise `ConfigError` for a writer that was committed or aborted."""
    if not is_open:
        raise ConfigError("the writer is closed: it was committed or aborted", path=path)


def require_known(options: Iterable[str], known: Sequence[str], path: str) -> None:
    """Raise `ConfigError` for options that a writer does not take."""
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ConfigError(f"unknown option {', '.join(unknown)}", path=path, expected=", ".join(known))
