"""What goes where in a conversion: formats, options of both sides, and the width of the tokens."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock._kinds import is_token_source
from penstock._secrets import redact
from penstock.abc import Format, Source, Store, TokenSource
from penstock.codec.tokens import TOKEN_BYTES, token_bytes_for_id
from penstock.convert.eos import EosRule
from penstock.convert.samples import GROUPED
from penstock.convert.tokens import column_tokens
from penstock.errors import ConfigError, Unsupported
from penstock.formats import files_at, formats_of_name, get_format, sniff
from penstock.store.outputs import output_path, require_other
from penstock.store.resolve import absolute, resolve, resolve_dataset
from penstock.types import Manifest, OpenOptions, Sample

_OF_SOURCE = ("layout", "flavor", "raw", "trust", "follow_links", "eos_id", "columns", "read")
_WIDTH_OPTIONS = ("token_bytes", "dtype", "vocab_size")


@dataclass(frozen=True, slots=True)
class Plan:
    """A conversion that makes sense.

    Attributes:
        source: what is read.
        source_path: where it is.
        format: of the target.
        target_path: where it will be, in its store.
        rule: for EOS tokens.
        create_options: of the target's writer.
        open_options: for reading it back.
        lost: what the source holds and the target has no place for.
    """

    source: TokenSource
    source_path: str
    format: Format
    target_path: str
    rule: EosRule
    create_options: dict[str, Any]
    open_options: OpenOptions
    lost: tuple[str, ...]


def make_plan(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    to: str | None,
    format: str | None,
    rule: EosRule,
    options: Mapping[str, Any],
) -> tuple[Plan, Store]:
    """The plan of a conversion, and the store of its target.

    Args:
        source: dataset to read.
        target: dataset to make.
        to: its format; None: by its suffix.
        format: of the source; None: by sniffing.
        rule: for EOS tokens.
        options: of both sides; see `convert`.

    Raises:
        NotFound: no source.
        Unsupported: the target's format can't hold these samples.
        ConfigError: options that make no sense.
    """
    chosen, source_options, target_options = sides(target, to, options)
    opened, source_path, source_format = _open(source, format, source_options)
    if chosen.traits.tokens and not is_token_source(opened):
        opened = column_tokens(opened, source_path, source_options.get("eos_id")) or opened
    store, target_path = resolve(target)
    target_path = output_path(store, target_path)
    require_other(files_at(source_format, source_path), target_path, *files_at(chosen.name, target_path))
    if not is_token_source(opened):
        hint = "It takes documents of tokens: use pack first, or name a source with a column 'tokens'"
        raise Unsupported(f"{chosen.name} can't hold these samples", path=source_path, hint=hint)
    rule.require_sense(source_path, opened.eos_id)
    target_options = _token_options(opened, source_path, rule, target_options) | target_options
    lost: tuple[str, ...] = tuple(getattr(opened, "only_here", ()))
    back = OpenOptions(split=target_options.get("split"), read="pread")
    return Plan(opened, source_path, chosen, target_path, rule, target_options, back, lost), store


def sides(
    target: str | os.PathLike[str], to: str | None, options: Mapping[str, Any]
) -> tuple[Format, dict[str, Any], dict[str, Any]]:
    """The format of the target, and the options of the source and of the target."""
    chosen = get_format(to or _format_of_name(os.fspath(target)))
    if not chosen.traits.write:
        raise Unsupported(f"the format {chosen.name!r} is read-only", path=target)
    given = {name: value for name, value in options.items() if value is not None}
    return chosen, *_sides(given, chosen)


def _sides(given: Mapping[str, Any], target: Format) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the source and of the target. A split is that of the target where one can be written."""
    of_source = {name: value for name, value in given.items() if name in _OF_SOURCE}
    of_target = {name: value for name, value in given.items() if name not in _OF_SOURCE}
    if "split" in of_target and (not target.traits.splits or target.name in GROUPED):
        of_source["split"] = of_target.pop("split")
    if "source_split" in of_target:
        of_source["split"] = of_target.pop("source_split")
    return of_source, of_target


def _open(
    source: str | os.PathLike[str], format: str | None, options: Mapping[str, Any]
) -> tuple[Source[Sample], str, str]:
    """The source, its path and its format."""
    store, path = resolve_dataset(source, follow_links=options.get("follow_links", False))
    # Read into memory that is given back: what is mapped counts as ours for as long as the system has room.
    given: dict[str, Any] = {"read": "pread", **options}
    if "columns" in given:
        given["columns"] = tuple(given["columns"])
    chosen = get_format(format) if format else sniff(store, path)
    return chosen.open(store, path, OpenOptions(**given)), path, chosen.name


def _token_options(source: TokenSource, path: str, rule: EosRule, given: Mapping[str, Any]) -> dict[str, Any]:
    found = getattr(source, "manifest", None)
    manifest = found if isinstance(found, Manifest) else None
    token_bytes = _token_bytes(source, manifest, rule)
    how = {"eos": rule.action} | ({} if rule.eos_id is None else {"eos_id": rule.eos_id})
    return {
        **({} if any(name in given for name in _WIDTH_OPTIONS) else {"token_bytes": token_bytes}),
        "eos_id": rule.known_after(source.eos_id),
        "tokenizer": None if manifest is None else manifest.tokenizer,
        "tokenizer_digest": None if manifest is None else manifest.tokenizer_digest,
        "inputs": {os.path.basename(redact(absolute(path))): source.fingerprint},
        # A format of one width for all ids remembers the source's, so that the way back leads to the same bytes.
        "options": {"command": "convert", "token_bytes": token_bytes, **how},
    }


def _token_bytes(source: TokenSource, manifest: Manifest | None, rule: EosRule) -> int:
    """Width of the target's tokens: that of the source; where its format has one for all, as told or as ids need it."""
    width = source.dtype.itemsize
    largest = getattr(source, "max_token_id", None)
    if largest is not None:
        told = None if manifest is None else manifest.options.get("token_bytes")
        needed = token_bytes_for_id(largest)
        width = max(needed, told) if told in TOKEN_BYTES else needed
    return width if rule.action != "add" or rule.eos_id is None else max(width, token_bytes_for_id(rule.eos_id))


def _format_of_name(target: str) -> str:
    fitting = formats_of_name(target)
    writable = [name for name in fitting if get_format(name).traits.write]
    if fitting and not writable:
        raise Unsupported(f"the format {fitting[0]!r} is read-only", path=target, hint="Name another with --to (to=)")
    if len(writable) != 1:
        raise ConfigError("the target's format is not clear from its name", path=target, hint="Name it with --to (to=)")
    return writable[0]
