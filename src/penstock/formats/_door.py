"""Open a dataset and apply its exclude list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock._kinds import is_token_source
from penstock.abc import Format, Source
from penstock.errors import ConfigError
from penstock.formats._excluded import exclusions_of
from penstock.formats._exclusions import excluding
from penstock.formats._marked import require_recorded_eos
from penstock.formats._planed import with_planes
from penstock.formats._token_column import as_tokens
from penstock.store.base import Store
from penstock.types import OpenOptions, Sample


def open_options(options: Mapping[str, Any]) -> OpenOptions:
    """Return a command's options of `penstock.open` as one object; raise `ConfigError` for an unknown one."""
    if options.get("decode") is not None:  # commands use samples as they are stored
        raise ConfigError("decode is only an option of penstock.open", hint="Omit decode=")
    try:
        return OpenOptions(**options)
    except TypeError:
        known = [name for name in OpenOptions.__slots__ if not name.startswith("_") and name != "decode"]
        unknown = sorted(set(options) - set(known))
        what = f"unknown option {', '.join(unknown)}"
        raise ConfigError(what, expected=", ".join(known)) from None


def open_at(chosen: Format, store: Store, path: str, options: OpenOptions) -> Source[Sample]:
    """Open the dataset at a path.

    Raises:
        NotFound: there is nothing at the path, or no exclude list of the given name.
        FormatError: the data violates its format, or the list is unreadable or belongs to other data.
        ConfigError: the data doesn't support an option, or the path is one file of a folder that has a list.
    """
    bare: Any = chosen.open(store, path, options)
    if options.eos_id is not None and is_token_source(bare):
        require_recorded_eos(path, options.eos_id, getattr(bare, "manifest", None))
    source = with_planes(chosen, store, path, options, bare)
    return without_excluded(chosen, store, path, options, source)


def without_excluded(
    chosen: Format, store: Store, path: str, options: OpenOptions, source: Source[Sample]
) -> Source[Sample]:
    """Apply the exclude list to a dataset that was opened in another way."""
    found = exclusions_of(chosen, store, path, options, source)
    if found is not None and options.tokens_column is not None and (options.one_document or options.documents == "eos"):
        what, hint = (
            "rows are excluded, but one_document ignores rows",
            "Omit --one-document (one_document=)",
        )
        if not options.one_document:
            what, hint = "rows are excluded, so each row must be a document", "Give --documents rows (documents=)"
        raise ConfigError(what, path=path, found=f"{len(found.indices)} excluded", hint=hint)
    read = as_tokens(chosen, store, path, options, source)
    return read if found is None else excluding(read, found)
