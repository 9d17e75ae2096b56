"""Choice of the split to read if none is named: one rule for all formats and commands."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence

from penstock._printable import printable
from penstock._secrets import logger, redact
from penstock.errors import ConfigError, Denied, NotFound, Unsupported
from penstock.store.base import Store

DEFAULT_SPLIT = "train"
_log = logger(__name__)


def choose_default_split(path: str, names: Sequence[str]) -> str:
    """Return the split to read if none is named: the only one, else `train`, which a log line names.

    Raises:
        ConfigError: there are several splits, and none is called `train`.
    """
    if len(names) == 1:
        return names[0]
    if DEFAULT_SPLIT not in names:
        what, hint = "the dataset has several splits", "Choose one with --split (split=)"
        raise ConfigError(what, path=path, found=", ".join(names) or "none", hint=hint)
    _name_split(path, tuple(names))
    return DEFAULT_SPLIT


def lacks_default_split(store: Store, path: str, names: Sequence[str]) -> bool:
    """Return whether the folder `train` exists but isn't one of the readable splits `names`.

    Costs nothing if it is one of them or there are none, else one look or one request. Web servers can't tell.
    """
    if not names or DEFAULT_SPLIT in names:
        return False
    folder = f"{path}/{DEFAULT_SPLIT}"
    if store.is_local:
        return store.is_folder(folder)
    if store.lists_levels:
        return bool(store.first_names(folder))
    with contextlib.suppress(NotFound, Denied, Unsupported):
        return any(True for _ in store.list(folder))
    return False


def require_default_split(store: Store, path: str, names: Sequence[str], required_file: str) -> None:
    """Raise `NotFound` if a folder `train` without `required_file` is next to the readable splits `names`."""
    if lacks_default_split(store, path, names):
        raise lacks_file(path, DEFAULT_SPLIT, required_file, names)


def lacks_file(path: str, split: str, required_file: str, names: Sequence[str]) -> NotFound:
    """Return the error for a split without the file that makes it readable, next to the readable splits `names`."""
    return NotFound(
        f"the split {split} has no {required_file}",
        path=f"{path}/{split}",
        hint=f"Finish writing or copying it, or choose another split with --split (split=): {', '.join(names)}",
    )


@functools.lru_cache(maxsize=1024)  # a command opens a dataset more than once
def _name_split(path: str, names: tuple[str, ...]) -> None:
    where, listed = redact(printable(path)), printable(", ".join(names))
    _log.warning("%s: reads split %s of %s; choose another with --split (split=)", where, DEFAULT_SPLIT, listed)
