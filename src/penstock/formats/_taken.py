"""Options of `penstock.open` that data of a format supports."""

from __future__ import annotations

from penstock._keywords import Decoding, definitions
from penstock.abc import Format
from penstock.errors import ConfigError
from penstock.types import OpenOptions

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
    from penstock.codec.parts import array_options  # with what it imports, only where it is asked for

    array_options(options.decode)
    if options.raw:
        what = "raw returns stored bytes and decode returns images as arrays"
        raise ConfigError(what, path=path, hint="Omit one of them")
