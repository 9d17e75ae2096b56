"""Open a dataset: check the options, then apply planes, a column of tokens, and the exclude list."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from contextvars import ContextVar
from typing import Any

from penstock._keywords import Decoding, definitions
from penstock._kinds import is_token_source
from penstock.abc import Format, Source
from penstock.errors import ConfigError
from penstock.formats._excluded import exclusions_of
from penstock.formats._exclusions import excluding
from penstock.formats._planed import with_planes
from penstock.formats._sources import require_recorded_eos
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


_NEEDS = {name: option.needs for name, _, option in definitions(Decoding) if option.needs is not None}
"""Option → the trait of the formats that support it, and its name in errors."""


def require_taken(chosen: Format, path: str, options: OpenOptions) -> None:
    """Raise `ConfigError` if data of a format doesn't support an option for opening it."""
    _require_tokens_read(chosen, path, options)
    _require_planes_read(chosen, path, options)
    if options.decode is not None:
        _require_arrays(path, options)
    for option, (trait, needs) in _NEEDS.items():
        if trait == "tokens" and options.tokens_column is not None:
            continue
        if getattr(options, option) is not None and not getattr(chosen.traits, trait):
            what = f"{option} needs {needs}, which the format {chosen.name!r} doesn't have"
            found = f"{option}={getattr(options, option)!r}"
            raise ConfigError(what, path=path, found=found, hint=f"Omit --{option.replace('_', '-')} ({option}=)")


def _require_tokens_read(chosen: Format, path: str, options: OpenOptions) -> None:
    """Raise `ConfigError` if options for reading rows as documents are used for anything else than rows."""
    if options.tokens_dtype is not None and options.tokens_column is None:
        hint = "Specify the column: --tokens-column (tokens_column=)"
        raise ConfigError("tokens_dtype only applies to token ids in a column of bytes", path=path, hint=hint)
    if options.mask_column is not None and options.tokens_column is None:
        hint = "Specify the column: --tokens-column (tokens_column=)"
        raise ConfigError("mask_column only applies to tokens in a column", path=path, hint=hint)
    if options.mask_column is not None and options.planes is None:
        hint = "Omit --drop-planes (planes=) or --mask-column (mask_column=)"
        raise ConfigError("a loss mask is both requested and dropped", path=path, found=options.mask_column, hint=hint)
    if options.documents is not None:
        _require_documents_known(path, options)
    if options.one_document and options.tokens_column is None and not chosen.traits.borderless:
        what = f"the format {chosen.name!r} stores document borders"
        if not chosen.traits.tokens:
            what = "rows have no tokens unless a column is specified"
        hint = "Specify it: --tokens-column (tokens_column=)" if not chosen.traits.tokens else "Omit --one-document"
        raise ConfigError(what, path=path, found="one_document", hint=hint)


def _require_documents_known(path: str, options: OpenOptions) -> None:
    if options.documents not in ("rows", "eos"):
        raise ConfigError(
            "unknown value for documents", path=path, found=repr(options.documents), expected="'rows' or 'eos'"
        )
    if options.tokens_column is None:
        what, hint = (
            "documents only applies to a column of tokens",
            "Specify the column: --tokens-column (tokens_column=)",
        )
        raise ConfigError(what, path=path, found=f"documents={options.documents!r}", hint=hint)
    if options.one_document:
        what, hint = "one_document and documents can't be combined", "Omit --one-document (one_document=)"
        raise ConfigError(what, path=path, found=f"documents={options.documents!r}", hint=hint)


def _require_planes_read(chosen: Format, path: str, options: OpenOptions) -> None:
    if options.planes not in ("auto", None):
        what, hint = "planes= only accepts None", "Omit planes=, or pass None"
        raise ConfigError(what, path=path, found=f"planes={options.planes!r}", hint=hint)
    if options.planes is None and not (chosen.traits.tokens or options.tokens_column):
        what, hint = f"the format {chosen.name!r} has no planes", "Omit --drop-planes (planes=)"
        raise ConfigError(what, path=path, found="planes=None", hint=hint)


def _require_arrays(path: str, options: OpenOptions) -> None:
    from penstock.codec.parts import array_options  # imports image code, which most commands don't need

    array_options(options.decode)
    if options.raw:
        what = "raw returns stored bytes and decode returns images as arrays"
        raise ConfigError(what, path=path, hint="Omit one of them")


SKIPPING: ContextVar[dict[str, Any] | None] = ContextVar("skipping_invalid_lines", default=None)
"""Path → its `IndexedLines`, for files in which invalid lines were skipped. None: invalid lines raise."""


@contextlib.contextmanager
def skipping_invalid_lines() -> Generator[dict[str, Any]]:
    """Let JSONL that is opened here skip and count its invalid lines."""
    known = SKIPPING.get()
    skipped: dict[str, Any] = {} if known is None else known
    token = SKIPPING.set(skipped)
    try:
        yield skipped
    finally:
        SKIPPING.reset(token)
