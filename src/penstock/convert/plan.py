"""What goes where in a conversion of tokens: the source, the width of the ids, and what the side file records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock._kinds import is_token_source
from penstock.abc import TokenSource
from penstock.codec.tokens import TOKEN_BYTES, token_bytes_for_id
from penstock.convert.asked import Asked
from penstock.convert.eos import EosRule
from penstock.convert.output import Output
from penstock.convert.rows import Dataset
from penstock.convert.tokens import column_tokens
from penstock.errors import ConfigError, Unsupported
from penstock.formats._kept import excluded_count, kept, left_out, whole_of
from penstock.store.local import Kept, LocalStore
from penstock.store.place import Place, distinct_names
from penstock.types import Manifest, OpenOptions

_WIDTH_OPTIONS = ("token_bytes", "dtype", "vocab_size")


@dataclass(frozen=True, slots=True)
class TokenPlan:
    """A conversion of documents that makes sense.

    Attributes:
        source: what is read.
        shown: the source as errors name it.
        rule: for EOS tokens.
        output: what is written.
        lost: what the source holds and the target has no place for.
        kept: what is found again of the files of a killed writer.
        excluded: documents that are left out, as the source's exclude list says.
    """

    source: TokenSource
    shown: str
    rule: EosRule
    output: Output
    lost: tuple[str, ...]
    kept: Kept
    excluded: int = 0


def plan_tokens(asked: Asked) -> TokenPlan:
    """The plan of a conversion of documents.

    Raises:
        NotFound: no source.
        Unsupported: the source holds no documents.
        ConfigError: options that make no sense.
    """
    place, to = asked.source, asked.to.name
    if not isinstance(place, Place):
        raise ConfigError(f"{to} is made from a dataset with a path", path=asked.target.path, hint="Use create")
    if isinstance(asked.columns, Mapping) or asked.group_rows is not None:
        raise ConfigError("documents of tokens have no columns and no groups", path=place.path)
    # Read into memory that is given back: what is mapped counts as ours for as long as the system has room.
    given: dict[str, Any] = {"read": "pread", **asked.of_source}
    seen = Dataset(place, asked.source_format, OpenOptions(**given)).opened()
    opened = kept(seen)
    if not is_token_source(opened):
        opened = column_tokens(opened, place.path, asked.of_source.get("eos_id")) or opened
    if not is_token_source(opened):
        hint = "It takes documents of tokens: use pack first, or name a source with a column 'tokens'"
        raise Unsupported(f"{to} can't hold these samples", path=place.path, hint=hint)
    asked.rule.require_sense(place.path, opened.eos_id)
    options = _token_options(opened, place, asked) | dict(asked.of_target)
    what = {"to": to, "source": opened.fingerprint, "options": options}
    what |= {"eos": [asked.rule.action, asked.rule.eos_id]}
    split = options.get("split")
    target = replace(asked.target, store=LocalStore(kept=asked.kept)) if asked.target.is_local else asked.target
    dataset = Dataset(target, to, OpenOptions(split=split, read="pread"))
    lost: tuple[str, ...] = tuple(getattr(opened, "only_here", ()))
    output = Output(dataset, options, asked.overwrite, what, split)
    return TokenPlan(opened, place.path, asked.rule, output, lost, asked.kept, excluded_count(seen))


def _token_options(source: TokenSource, place: Place, asked: Asked) -> dict[str, Any]:
    rule = asked.rule
    found = getattr(source, "manifest", None)
    manifest = found if isinstance(found, Manifest) else None
    token_bytes = _token_bytes(source, manifest, rule)
    how = {"eos": rule.action} | ({} if rule.eos_id is None else {"eos_id": rule.eos_id})
    return {
        **({} if any(name in asked.of_target for name in _WIDTH_OPTIONS) else {"token_bytes": token_bytes}),
        "eos_id": rule.known_after(source.eos_id),
        "tokenizer": None if manifest is None else manifest.tokenizer,
        "tokenizer_digest": None if manifest is None else manifest.tokenizer_digest,
        "inputs": {distinct_names([place])[0]: whole_of(source).fingerprint},
        # A format of one width for all ids remembers the source's, so that the way back leads to the same bytes.
        "options": {"command": "convert", "token_bytes": token_bytes, **how, **left_out(source)},
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
