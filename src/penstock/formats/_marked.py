"""Documents separated by an id, in data that doesn't record where documents begin."""

from __future__ import annotations

from typing import Any

from penstock._secrets import logger
from penstock.errors import ConfigError
from penstock.formats._exclusions import stored, whole_of
from penstock.types import Manifest

_log = logger(__name__)


def no_such_mark(path: str, mark: int) -> ConfigError:
    """Return the error for data without the id that is supposed to separate documents."""
    what = "no token has the id given as the end of documents"
    hint = "Give the right one with --eos-id (eos_id=), or omit it and use --one-document"
    return ConfigError(what, path=path, found=f"eos_id {mark}", hint=hint)


def require_recorded_eos(path: str, eos_id: int | None, manifest: Manifest | None) -> None:
    """Raise `ConfigError` if an EOS id contradicts the one recorded with the data."""
    recorded = None if manifest is None else manifest.eos_id
    if eos_id is not None and recorded is not None and eos_id != recorded:
        raise ConfigError(
            "the data records a different EOS id",
            path=path,
            found=eos_id,
            expected=recorded,
            hint="Omit --eos-id (eos_id=); to cut labelled windows at another id, use Chunk(eos_id=)",
        )


def certain_eos(source: Any, shown: str) -> int | None:
    """Return the id that ends every document of a token source, for a side file; None if unknown.

    If this id separated the documents, the last one may lack it. Then none is recorded, and a warning is logged.
    """
    if source.eos_id is None or not getattr(stored(whole_of(source)), "is_marked", False):
        return source.eos_id
    total = source.num_tokens
    if total and int(source.tokens(total - 1, total)[0]) != source.eos_id:
        _log.warning("%s: the last document doesn't end with id %d, so no EOS id is recorded", shown, source.eos_id)
        return None
    return source.eos_id
