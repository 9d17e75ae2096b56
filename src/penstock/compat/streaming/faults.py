"""Our errors, with the types that the original raises for the same: code that catches those catches these."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager

from penstock.errors import ConfigError, Corrupt, NotFound, PenstockError, Truncated
from penstock.formats.shards.index_json import INDEX_NAME


class NoIndex(NotFound, RuntimeError):
    """A dataset on this machine without its index: the original's `RuntimeError`."""


class NoPlace(ConfigError, FileExistsError):
    """A stream of nothing: the original's `FileExistsError`."""


class EmptyStream(ConfigError, RuntimeError):
    """A stream without samples: the original's `RuntimeError`."""


class NoPlaceOfASample(ConfigError, TypeError):
    """Not an index: the original's `ValueError`, of which `ConfigError` is a subclass."""


class _Undecodable(json.JSONDecodeError):
    def __init__(self, what: str) -> None:
        super().__init__(what, "", 0)


class DamagedIndex(Corrupt, _Undecodable):
    """An index of invalid JSON: the original's `JSONDecodeError`."""


class CutIndex(Truncated, _Undecodable):
    """An index that is empty or cut off: the original's `JSONDecodeError`."""


@contextmanager
def as_the_original(*, is_remote: bool) -> Generator[None]:
    """Raise what opening a dataset raises as the original's types, too."""
    try:
        yield
    except (Truncated, Corrupt) as error:
        if not str(error.path).endswith(INDEX_NAME):
            raise
        kind = CutIndex if isinstance(error, Truncated) else DamagedIndex
        raise _again(error, kind, f"Index file at {error.path} is empty or corrupted: {error.what}") from error
    except NotFound as error:
        if is_remote:
            raise _again(error, type(error), f"No such file or directory: {error.what}") from error
        what = f"No `remote` provided, but local file does not exist (No such file or directory): {error.what}"
        raise _again(error, NoIndex, what) from error


def _again(error: PenstockError, kind: type[PenstockError], what: str) -> PenstockError:
    return kind(what, path=error.path, found=error.found, expected=error.expected, hint=error.hint)
