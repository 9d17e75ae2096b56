"""What goes where in a conversion of tokens: the source, the width of the ids, and what the side file records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from penstock._kinds import TokenParts, is_token_source
from penstock._planes import DROP, planes_of
from penstock.abc import TokenSource
from penstock.codec.tokens import TOKEN_BYTES, token_bytes_for_id, token_bytes_for_vocab
from penstock.convert.asked import Asked
from penstock.convert.eos import EosRule
from penstock.convert.output import Output
from penstock.convert.rows import Dataset
from penstock.engine.options import RunOptions
from penstock.engine.plan import Plan
from penstock.engine.work import work_folder
from penstock.errors import ConfigError, PenstockError, Unsupported
from penstock.executors import HERE
from penstock.formats import get_format
from penstock.formats._excluding import stored
from penstock.formats._kept import carried_list, excluded_count, kept, left_out, whole_of
from penstock.formats._marked import certain_eos
from penstock.formats._planes import base_of, require_all_listed, require_intact
from penstock.formats._token_column import ColumnTokens, usual_column
from penstock.formats.tokens.folder.side import NAME as FOLDER
from penstock.store.exclude_list import NO_LIST, Entry
from penstock.store.local import Kept, LocalStore
from penstock.store.memory import MemoryStore
from penstock.store.place import Place, distinct_names
from penstock.types import Manifest, OpenOptions

_WIDTH_OPTIONS = ("token_bytes", "dtype", "vocab_size")
TASK_TOKENS = 1 << 25
"""Of the documents that a worker makes a part of."""


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
        dataset: where the source is.
        to: format of the output; of a folder, of its files.
        file_tokens: of a folder, the tokens of a file.
        token_bytes: width in which its writer takes parts; 0 where it takes none.
        recorded: what its side file says of the options.
        how: how to run it.
        shared: that work, as others know it.
        by_parts: it is written in parts: shared, by several workers, as token files, or begun so.
        excluded: documents that are left out, as the source's exclude list says.
        carried: entries of those that are copied although they are excluded.
    """

    source: TokenSource
    shown: str
    rule: EosRule
    output: Output
    lost: tuple[str, ...]
    kept: Kept
    dataset: Dataset
    to: str
    file_tokens: int | None
    token_bytes: int
    recorded: Mapping[str, Any]
    how: RunOptions
    shared: Plan
    by_parts: bool
    excluded: int = 0
    carried: Sequence[Entry] = ()


def plan_tokens(asked: Asked) -> TokenPlan:
    """The plan of a conversion of documents.

    Raises:
        NotFound: no source.
        Unsupported: the source holds no documents.
        ConfigError: options that make no sense.
    """
    place, to = asked.source, asked.to.name
    if not isinstance(place, Place):
        raise ConfigError(
            f"{to} can only be created from a dataset with a path", path=asked.target.path, hint="Use create"
        )
    if isinstance(asked.columns, Mapping) or asked.group_rows is not None:
        raise ConfigError("documents of tokens have no columns and no groups", path=place.path)
    # Read into memory that is given back: what is mapped counts as ours for as long as the system has room.
    given: dict[str, Any] = {"read": "pread", **asked.of_source}
    opening = OpenOptions(**given)
    if opening.tokens_column is None:  # the usual one is looked for without the options that need one
        planes = opening.planes if get_format(asked.source_format).traits.tokens else "auto"
        rows = Dataset(place, asked.source_format, replace(opening, mask_column=None, planes=planes)).opened()
        if not is_token_source(rows) and (found := usual_column(stored(rows))) is not None:
            opening = replace(opening, tokens_column=found)
    dataset = Dataset(place, asked.source_format, opening)
    seen = dataset.opened()
    if opening.tokens_column is not None:  # documents stored as tokens are proved when they are read
        dataset.require_as_recorded(seen)
    carried = carried_list(seen) if asked.how.keep_excluded else NO_LIST
    excluded = 0 if asked.how.keep_excluded else excluded_count(seen)
    opened = stored(seen) if asked.how.keep_excluded else kept(seen)
    if asked.how.keep_excluded or excluded:
        dataset = dataset.whole() if asked.how.keep_excluded else dataset.settled(seen)
    if not is_token_source(opened):
        hint = "It needs token documents: use pack first, or specify the column of token ids with --tokens-column"
        raise Unsupported(f"{to} can't hold these samples", path=place.path, hint=hint)
    asked.rule.require_sense(place.path, opened.eos_id)
    options = _token_options(opened, place, asked) | dict(asked.of_target)
    if carried.entries:
        options["options"] |= {"keep_excluded": [carried.digest]}
    what = {"to": to, "source": opened.fingerprint, "options": options}
    what |= {"eos": [asked.rule.action, asked.rule.eos_id]}
    split = options.get("split")
    target = replace(asked.target, store=LocalStore(kept=asked.kept)) if asked.target.is_local else asked.target
    written = Dataset(
        target, FOLDER if asked.file_tokens else to, OpenOptions(split=split, read="pread", excludes=NO_LIST)
    )
    lost: tuple[str, ...] = tuple(getattr(opened, "only_here", ()))
    output = Output(written, options, asked.how.overwrite, what, split, _planes(opened, place, asked))
    here = isinstance(asked.how.executor, str) and asked.how.executor in HERE
    by_parts = bool(asked.file_tokens or asked.how.is_distributed or asked.how.restart or not here)
    begun = work_folder(asked.target, inside=asked.file_tokens is not None).is_there()
    by_parts = by_parts or (asked.how.workers or 1) > 1 or begun
    width, recorded = _tried(to, options, asked.target) if by_parts else (0, {})
    shared = _shared(what, asked)
    how = (width, recorded, asked.how, shared, by_parts)
    about = (opened, place.path, _promised(asked, opened.eos_id), output, lost, asked.kept)
    return TokenPlan(*about, dataset, to, asked.file_tokens, *how, excluded, carried.entries)


def _promised(asked: Asked, recorded: int | None) -> EosRule:
    """The rule with the id that was said to end each document; where it may be what finds them, the last has none.

    Not every document needs to end in the EOS that is only recorded.
    """
    said = asked.of_source.get("eos_id")
    if asked.rule.action == "strip" and said is None and recorded == asked.rule.eos_id:
        return replace(asked.rule, only_recorded=True)
    finds = asked.of_source.get("one_document") or get_format(asked.source_format).traits.borderless
    return asked.rule if finds else replace(asked.rule, promised=said)


def _planes(opened: TokenSource, place: Place, asked: Asked) -> dict[str, str]:
    """Name → dtype of the planes that go along; raises `ConfigError` where an EOS rule would need values of them."""
    found = {name: str(one.dtype) for name, one in planes_of(opened).items()}
    if found and asked.rule.action != "keep":
        what = "planes can't be combined with adding or stripping EOS"
        raise ConfigError(what, path=place.path, found=f"--eos {asked.rule.action}", hint=DROP)
    if found and base_of(asked.to.name, asked.target.path) is None:
        what = f"the format {asked.to.name!r} can't have planes"
        raise ConfigError(what, path=place.path, found=", ".join(found), hint=DROP)
    require_intact(planes_of(opened).values())
    given: Mapping[str, Any] = asked.of_source
    if given.get("planes", "auto") is not None and given.get("split") is None:
        require_all_listed(asked.source_format, place.store, place.path, stored(opened))
    return found


def _shared(what: Mapping[str, Any], asked: Asked) -> Plan:
    """All that decides the bytes, as a plan that others join, or are told in what they differ."""
    named = {f"--{name.replace('_', '-')}": value for name, value in asked.of_target.items()}
    told = {"--to": what["to"], "the source": what["source"], "--eos": what["eos"], "--file-tokens": asked.file_tokens}
    told |= {"--eos-id": what["options"]["eos_id"], "--overwrite": asked.how.overwrite}
    plain = msgspec.json.decode(msgspec.json.encode({**named, **told}, enc_hook=str))
    return Plan(options=plain, inputs=(), task_bytes=TASK_TOKENS, engine="convert")


def _tried(to: str, options: Mapping[str, Any], target: Place) -> tuple[int, Mapping[str, Any]]:
    """`(width in which the writer takes parts, what its side file says of options)`; raises what it says of these."""
    try:
        with get_format(to).create(MemoryStore(), "target", dict(options), overwrite=False) as writer:
            return writer.part_bytes if isinstance(writer, TokenParts) else 0, writer.commit().options
    except PenstockError as error:
        error.path = target.path
        raise


def _token_options(source: TokenSource, place: Place, asked: Asked) -> dict[str, Any]:
    rule = asked.rule
    found = getattr(source, "manifest", None)
    manifest = found if isinstance(found, Manifest) else None
    told = _told_width(source, asked.of_target)
    token_bytes = _token_bytes(source, manifest, rule) if told is None else told
    how = {"eos": rule.action} | ({} if rule.eos_id is None else {"eos_id": rule.eos_id})
    return {
        **({} if any(name in asked.of_target for name in _WIDTH_OPTIONS) else {"token_bytes": token_bytes}),
        "eos_id": rule.known_after(certain_eos(source, place.path)),
        "tokenizer": None if manifest is None else manifest.tokenizer,
        "tokenizer_digest": None if manifest is None else manifest.tokenizer_digest,
        "inputs": {distinct_names([place])[0]: whole_of(source).fingerprint},
        # A format of one width for all ids remembers the source's, so that the way back leads to the same bytes.
        "options": {"command": "convert", "token_bytes": token_bytes, **how, **left_out(source)},
    }


def _told_width(source: TokenSource, of_target: Mapping[str, Any]) -> int | None:
    """Width that the ids of a column are asked for in: then nobody need look for the largest."""
    if not isinstance(stored(whole_of(source)), ColumnTokens):
        return None
    width, vocab_size = of_target.get("token_bytes"), of_target.get("vocab_size")
    if width is None and isinstance(vocab_size, int) and 1 <= vocab_size <= 1 << 32:
        width = token_bytes_for_vocab(vocab_size)
    return width if width in TOKEN_BYTES else None


def _token_bytes(source: TokenSource, manifest: Manifest | None, rule: EosRule) -> int:
    """Width of the target's tokens: that of the source; where its format has one for all, as told or as ids need it."""
    width = source.dtype.itemsize
    largest = getattr(source, "max_token_id", None)
    if largest is not None:
        told = None if manifest is None else manifest.options.get("token_bytes")
        needed = token_bytes_for_id(largest)
        width = max(needed, told) if told in TOKEN_BYTES else needed
    return width if rule.action != "add" or rule.eos_id is None else max(width, token_bytes_for_id(rule.eos_id))
