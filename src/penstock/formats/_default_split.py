"""Which split is read if none is named: one rule for all formats, so that all verbs follow it."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from penstock._printable import printable
from penstock._secrets import logger, redact
from penstock.errors import ConfigError

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
        what, hint = "the dataset has several splits", "Name one with --split (split=)"
        raise ConfigError(what, path=path, found=", ".join(names) or "none", hint=hint)
    _name_split(path, tuple(names))
    return DEFAULT_SPLIT


@functools.lru_cache(maxsize=1024)  # a verb opens a dataset more than once
def _name_split(path: str, names: tuple[str, ...]) -> None:
    where, listed = redact(printable(path)), printable(", ".join(names))
    _log.warning("%s: reads split %s of %s; name another with --split (split=)", where, DEFAULT_SPLIT, listed)
