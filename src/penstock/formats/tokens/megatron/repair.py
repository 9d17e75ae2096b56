"""Repair a dataset: rebuild its index from its sound parts, or from the EOS tokens.

Tokens are never changed, and the old index is kept as `<prefix>.idx.bak`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PenstockError
from penstock.formats._manifest import DATA
from penstock.formats._repairs import Damaged, Recorded, Repair, Rewrite, not_repaired, repaired_by
from penstock.formats._side_checks import begins_otherwise
from penstock.formats.tokens.checks import are_others, document_ends
from penstock.formats.tokens.ids import FileIds
from penstock.formats.tokens.megatron.index import TRAILING, IndexArrays, filling_kind, index_problems
from penstock.formats.tokens.megatron.kept import (
    KEPT,
    drop_kept,
    end_replacement,
    is_half_replaced,
    left_names,
    prefix_of,
    put_back,
    reading_commit,
)
from penstock.formats.tokens.megatron.layout import (
    HEADER_BYTES,
    KINDS,
    MAGIC,
    Header,
    Kind,
    bin_path,
    encode_header,
    idx_path,
    kind_for,
    named_prefix,
    new_prefix,
    read_header,
    side_file_path,
)
from penstock.formats.tokens.megatron.source import last_sequence_problem
from penstock.formats.tokens.megatron.writer import write_megatron_manifest
from penstock.store.base import Store
from penstock.store.put import aborting
from penstock.store.side_file import load_manifest
from penstock.types import Action, IntArray, Manifest, OpenOptions, TokenArray

_RUN_TOKENS = 1 << 22


@dataclass(frozen=True, slots=True)
class _Plan:
    """A repaired index.

    Attributes:
        what: what is done.
        kind: how ids are stored.
        lengths: int64[n_sequences], in tokens.
        pointers: int64[n_sequences], in bytes.
        borders: int64[n_docs + 1].
        modes: int8[n_sequences], or None.
        code: of the finding that is repaired.
    """

    what: str
    kind: Kind
    lengths: IntArray
    pointers: IntArray
    borders: IntArray
    modes: NDArray[np.int8] | None = None
    code: str = "megatron.index"


def _plan_index(damaged: Damaged) -> Iterator[Rewrite | Action]:
    """Yield the new index. Memory: 40 bytes per sequence and 64 MiB.

    - Wrong pointers are set to the sums of the lengths, if these fill the tokens.
    - A wrong document index becomes one document per sequence.
    - Incomplete documents of a truncated file are dropped from the index, and a side file is written for it.
    - An index that is damaged or missing is rebuilt from the EOS tokens if `options.eos_id` or a side file names them;
      one that ends before the tokens do, only if `options.eos_id` does. The dtype is that of the header, else of the
      side file, else `layout=`, such as `"uint16"`.
    """
    store, prefix, options = damaged.store, damaged.path, damaged.options
    tokens_path, side_path = bin_path(prefix), side_file_path(prefix)
    # After a half-made replacement, other faults are found once the old dataset is restored.
    if is_half_replaced(store, prefix) or not store.exists(tokens_path):
        return
    manifest = load_manifest(store, side_path, to_write=True)
    plans = _plans(store, prefix, options)
    plan = next(
        (one for one in plans if _is_proved(store, prefix, manifest, one, options)), plans[0] if plans else None
    )
    if plan is None:
        return
    if _are_others(store, prefix, manifest, plan, options):
        yield not_repaired("megatron.changed", tokens_path, side_path)
        return
    num_tokens = int(plan.lengths.sum())

    def make() -> None:
        _write(store, prefix, plan)
        if manifest is not None or num_tokens * plan.kind.itemsize != store.size(tokens_path):
            # Only a side file tells tokens that were dropped on purpose from an index that is older than its tokens.
            known_eos = replace(options, eos_id=_recorded_eos(store, prefix))
            write_megatron_manifest(store, prefix, known_eos, manifest, replace=True)

    recorded = Recorded(side_path, manifest, "documents", len(plan.borders) - 1, num_tokens)
    yield Rewrite(plan.code, idx_path(prefix), plan.what, make, "the old index", recorded)


def _end_replacement(damaged: Damaged) -> Iterator[Action]:
    """Restore the old dataset of a replacement that was killed; remove the leftovers of a finished one."""
    store, prefix = damaged.store, damaged.path
    half, left = is_half_replaced(store, prefix), left_names(store, prefix)
    if left:
        what = "restore the old dataset" if half else f"remove {', '.join(left)}, left over from a replaced dataset"
        if prefix_of(store, prefix) == new_prefix(prefix):
            what = "put the new index in place: it matches the tokens"
        if damaged.write:
            put_back(store, prefix) if half else drop_kept(store, prefix)
            end_replacement(store, prefix)
        yield Action(KEPT, idx_path(prefix), what, done=damaged.write)
    if damaged.write:
        store.stage(side_file_path(prefix), overwrite=True).abort()  # removes the leftovers of a killed repair


def _at(store: Store, path: str) -> tuple[Store, str]:
    store = reading_commit(store, path)
    return store, named_prefix(store, path)


repair_megatron = repaired_by(Repair(_end_replacement, always=True), Repair(_plan_index), at=_at)


def _plans(store: Store, prefix: str, options: OpenOptions) -> list[_Plan]:
    """Return the possible plans, the likeliest first: from the index, then from the EOS tokens."""
    bin_bytes = store.size(bin_path(prefix))
    header = read_header(store, prefix) if store.exists(idx_path(prefix)) else None
    plans: list[_Plan] = []
    if isinstance(header, Header):
        index = IndexArrays(store, prefix, header, bin_bytes, options.read)
        kind = filling_kind(index)
        if kind is not None:
            return _plan_width(index, kind)
        problems = [last_sequence_problem(index), *index_problems(index)]
        errors = [one for one in problems if one is not None and one.severity == "error"]
        if not errors or (options.eos_id is None and all(one.code == TRAILING for one in errors)):
            return []  # the index is sound, or the EOS id for a new one is unknown
        plan = _plan_arrays(index)
        plans += [] if plan is None else [plan]
    kind = header.kind if isinstance(header, Header) else _known_kind(store, prefix, options)
    if kind is None:
        return plans
    eos_id = options.eos_id if options.eos_id is not None else _recorded_eos(store, prefix)
    if eos_id is None or not 0 <= eos_id < kind.id_limit:
        return plans
    ids = FileIds(store, bin_path(prefix), 0, bin_bytes // kind.itemsize, kind.stored, options.read)
    plan = _plan_from_tokens(ids, kind, eos_id)
    return plans if plan is None else [*plans, plan]


def _is_proved(store: Store, prefix: str, manifest: Manifest | None, plan: _Plan, options: OpenOptions) -> bool:
    """Return whether a plan has exactly the documents of the side file's digest."""
    num_tokens = int(plan.lengths.sum())
    if manifest is None or manifest.digest is None or manifest.num_tokens != num_tokens:
        return False
    return not are_others(manifest, num_tokens, _documents(store, prefix, plan, options))


def _are_others(store: Store, prefix: str, manifest: Manifest | None, plan: _Plan, options: OpenOptions) -> bool:
    """Return whether a plan has other documents than the side file, as far as it proves this of fewer ones."""
    if manifest is None or _is_proved(store, prefix, manifest, plan, options):
        return False
    digests = manifest.block_digests.get(DATA, ())
    is_whole = manifest.num_tokens is not None and (
        store.size(bin_path(prefix)) == manifest.num_tokens * plan.kind.itemsize
    )
    return (
        are_others(manifest, int(plan.lengths.sum()), _documents(store, prefix, plan, options))
        or begins_otherwise(store, bin_path(prefix), digests, is_whole=is_whole)
        or _end_otherwise(manifest, _documents(store, prefix, plan, options))
    )


def _plan_width(index: IndexArrays, kind: Kind) -> list[_Plan]:
    """Return the index with the token width at which its lengths fill the tokens, and nothing else."""
    header = index.header
    lengths, borders = index.lengths(0, header.num_sequences), index.borders(0, header.num_documents + 1)
    if int(lengths.min()) < 0 or borders[0] != 0 or borders[-1] != len(lengths) or bool((np.diff(borders) < 0).any()):
        return []
    what = f"record {kind.itemsize}-byte tokens ({kind.name}) instead of {header.kind.name}, and set the pointers"
    ends = np.cumsum(lengths, dtype=np.int64) * kind.itemsize
    pointers = ends - lengths * kind.itemsize
    return [_Plan(what, kind, lengths, pointers, borders, index.modes(), "megatron.width")]


def _plan_arrays(index: IndexArrays) -> _Plan | None:
    """Return the index made consistent; None if its lengths are wrong."""
    header, width = index.header, index.header.kind.itemsize
    lengths = index.lengths(0, header.num_sequences)
    pointers = index.pointers(0, header.num_sequences)
    borders = index.borders(0, header.num_documents + 1)
    if len(lengths) and int(lengths.min()) < 0:
        return None
    changes: list[str] = []
    ends = np.cumsum(lengths) * width
    straight = ends - lengths * width
    inside = (pointers >= 0) & (pointers % width == 0) & (pointers <= index.bin_bytes - lengths * width)
    if not inside.all() and len(ends) and int(ends[-1]) == index.bin_bytes:
        changes.append(f"set {int((~inside).sum())} pointers to the sums of the lengths")
        pointers, inside = straight, np.ones(len(lengths), np.bool_)
    whole = bool((np.diff(borders, prepend=0) >= 0).all()) and borders[0] == 0 and borders[-1] == len(lengths)
    if not whole:
        changes.append(f"make each of the {len(lengths)} sequences a document")
        borders = np.arange(len(lengths) + 1, dtype=np.int64)
    modes = index.modes()
    if not inside.all():
        # Documents, not sequences, are kept or dropped as a whole.
        bad = np.concatenate([[0], np.cumsum(~inside)])
        keep = bad[borders[1:]] == bad[borders[:-1]]
        kept = np.repeat(keep, np.diff(borders))
        changes.append(f"drop {int((~keep).sum())} incomplete documents")
        borders = np.concatenate([[0], np.cumsum(np.diff(borders)[keep])])
        lengths, pointers, modes = lengths[kept], pointers[kept], None if modes is None else modes[kept]
    if not changes:
        return None
    return _Plan("; ".join(changes), header.kind, lengths, pointers, borders, modes)


def _plan_from_tokens(ids: FileIds, kind: Kind, eos_id: int) -> _Plan | None:
    try:
        ends = document_ends(ids, ids.num_tokens, eos_id)
    except PenstockError:
        return None
    if not len(ends):
        return None
    what = f"rebuild the index from the EOS id {eos_id}: {len(ends)} documents"
    rest = ids.num_tokens - int(ends[-1])
    if rest:
        what += f"; drop the last {rest} tokens, which don't end with EOS"
    lengths = np.diff(ends, prepend=0)
    pointers = (ends - lengths) * kind.itemsize
    return _Plan(what, kind, lengths, pointers, np.arange(len(lengths) + 1, dtype=np.int64))


def _documents(store: Store, prefix: str, plan: _Plan, options: OpenOptions) -> Iterator[tuple[TokenArray, IntArray]]:
    """Yield runs of whole documents of a plan: tokens, and int64 lengths. Memory: a run, or a long document."""
    width = plan.kind.itemsize
    path = bin_path(prefix)
    ids = FileIds(store, path, 0, store.size(path) // width, plan.kind.stored, options.read)
    places, ends = plan.pointers // width, np.concatenate([[0], np.cumsum(plan.lengths)])
    doc_ends = ends[plan.borders]
    for docs in np.split(np.arange(len(doc_ends) - 1), np.flatnonzero(np.diff(doc_ends[1:] // _RUN_TOKENS)) + 1):
        if not len(docs):
            continue
        rows = slice(int(plan.borders[docs[0]]), int(plan.borders[docs[-1] + 1]))
        first, lengths = places[rows], plan.lengths[rows]
        apart = np.flatnonzero(first[1:] != first[:-1] + lengths[:-1]) + 1
        pieces = zip(np.split(first, apart), np.split(first + lengths, apart), strict=True)
        tokens = [ids.tokens(int(starts[0]), int(stops[-1])) for starts, stops in pieces if len(starts)]
        yield np.concatenate(tokens or [np.empty(0, np.uint32)]), np.diff(doc_ends[docs[0] : docs[-1] + 2])


def _end_otherwise(manifest: Manifest | None, documents: Iterable[tuple[TokenArray, IntArray]]) -> bool:
    """Return whether documents don't end in the EOS id of the side file: tokens before their ends are missing."""
    if manifest is None or manifest.eos_id is None:
        return False
    ends = ((tokens, np.cumsum(lengths)[lengths > 0] - 1) for tokens, lengths in documents)
    return any((tokens[last] != manifest.eos_id).any() for tokens, last in ends)


def _known_kind(store: Store, prefix: str, options: OpenOptions) -> Kind | None:
    """Return how ids are stored: `layout=`, else from a complete header, else from the side file."""
    if options.layout is not None:
        return kind_for(prefix, options.layout)
    if store.exists(idx_path(prefix)):
        data = store.get(idx_path(prefix), 0, HEADER_BYTES)
        if len(data) == HEADER_BYTES and data.startswith(MAGIC):
            fitting = [kind for kind in KINDS.values() if kind.code == data[17]]
            if fitting:
                return fitting[0]
    manifest = load_manifest(store, side_file_path(prefix), to_write=True)
    return None if manifest is None else KINDS.get(str(manifest.options.get("dtype")))


def _recorded_eos(store: Store, prefix: str) -> int | None:
    """Return the EOS id in the side file, even if the damaged files differ from it."""
    manifest = load_manifest(store, side_file_path(prefix), to_write=True)
    return None if manifest is None or manifest.format != "megatron" else manifest.eos_id


def _write(store: Store, prefix: str, plan: _Plan) -> None:
    with aborting(store.stage(idx_path(prefix), overwrite=True)) as staged:
        header = Header(plan.kind, len(plan.lengths), len(plan.borders) - 1, plan.modes is not None)
        staged.write(encode_header(header))
        for array, dtype in ((plan.lengths, "<i4"), (plan.pointers, "<i8"), (plan.borders, "<i8")):
            staged.write(array.astype(dtype))
        if plan.modes is not None:
            staged.write(plan.modes)
        staged.commit()
