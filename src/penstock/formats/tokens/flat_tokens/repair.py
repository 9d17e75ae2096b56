"""Repair a group: `seq_starts` from the start bits, and `max_token_id` from the tokens.

The tokens are never changed. Replaced files are kept next to the outermost group as `<group>.<name>.bak`.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.errors import PenstockError, Unsupported
from penstock.formats._findings import Problem
from penstock.formats._manifest import file_digest
from penstock.formats._repairs import Damaged, Recorded, Repair, Rewrite, not_repaired, repaired_by
from penstock.formats.tokens.flat_tokens.check import groups_at, present_files
from penstock.formats.tokens.flat_tokens.chunk_writer import ArrayWriter, ChunkWork
from penstock.formats.tokens.flat_tokens.encode import make_layout
from penstock.formats.tokens.flat_tokens.group import (
    LIMIT,
    STARTS,
    TOKENS,
    Group,
    group_facts,
    opened_zip,
    read_group,
    side_part,
    side_place,
)
from penstock.formats.tokens.flat_tokens.source import AnyArray, open_array, starts_problem
from penstock.formats.tokens.flat_tokens.writer import write_flat_manifest
from penstock.formats.tokens.zarr.chunks import ChunkArray
from penstock.formats.tokens.zarr.meta import (
    ARRAY_FILE,
    ATTRIBUTES_FILE,
    CONSOLIDATED_FILE,
    Json,
    encode_array,
    encode_group,
    parse_json,
)
from penstock.store._files import raised
from penstock.store.base import Store
from penstock.store.put import aborting, put
from penstock.store.side_file import is_next, sweep_next
from penstock.types import Action, IntArray

_BUDGET_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class _Plan:
    """New metadata of a group.

    Attributes:
        group: the group.
        starts: int64[n + 1], the new `seq_starts`; None to keep them.
        lost: number of sequences that are lost, if known.
        limit: the new `max_token_id`; None to keep it.
    """

    group: Group
    starts: IntArray | None
    lost: int
    limit: int | None


def _plan_groups(damaged: Damaged) -> Iterator[Rewrite | Action]:
    """Yield new metadata. Reads every token; memory: 8 bytes per sequence.

    - `seq_starts` that are missing, damaged, or differ from the start bits are rebuilt from the bits. Empty sequences
      have no bit, so they are lost then.
    - `max_token_id` that is missing, invalid or too small becomes the largest id.

    A group with tokens that can't be read isn't changed: they must be restored first.

    Raises:
        NotFound: there is nothing at the path.
    """
    store, path, write = damaged.store, damaged.path, damaged.write
    folders = groups_at(store, path, damaged.options.split)
    plans = [plan for folder in folders if (plan := _plan(store, read_group(store, folder))) is not None]
    yield from _settle(store, folders, write=write)
    for plan in plans:
        if _are_others(store, plan.group):
            where = f"{plan.group.path}/{plan.group.tokens_name}"
            yield not_repaired("flat-tokens.changed", where, side_place(store, plan.group.path)[0])
            return
    lost = {
        plan.group.path: Recorded(
            side_place(store, plan.group.path)[0],
            side_part(store, plan.group.path),
            "sequences",
            len(plan.starts) - 1,
        ).kept(store, write=write)
        for plan in plans
        if plan.starts is not None
    }
    for plan in plans:
        yield from _rewrites(store, plan, lost.get(plan.group.path, ""), write=write)
    if write and plans and store.exists(side_place(store, folders[0])[0]):
        write_flat_manifest(store, path, damaged.options, replace=True)


def _settle(store: Store, folders: Sequence[str], *, write: bool) -> list[Action]:
    """Complete or remove the side file that a writer left that was killed while it replaced a group."""
    side_path, _ = side_place(store, folders[0])
    belongs = any(
        is_next(store, side_path, functools.partial(group_facts, store, read_group(store, folder)), part)
        for folder in folders
        for part in (side_place(store, folder)[1],)
    )
    return sweep_next(store, "flat-tokens.next", [side_path], belongs, write=write)


repair_flat_tokens = repaired_by(
    Repair(_plan_groups, always=True),
    at=lambda store, path: (opened_zip(store, path.rstrip("/")), path.rstrip("/") or path),
)


def _plan(store: Store, group: Group) -> _Plan | None:
    if group.tokens is None:
        return None
    array = open_array(store, f"{group.path}/{group.tokens_name}", group.tokens, "auto", _BUDGET_BYTES)
    found = _scan(store, array)
    if found is None:
        return None
    begins, highest, is_whole = found
    limit = max(highest, 0) if group.max_token_id is None or highest > group.max_token_id else None
    starts, lost = _rebuilt(store, group, begins) if is_whole else (None, 0)
    return None if starts is None and limit is None else _Plan(group, starts, lost, limit)


def _are_others(store: Store, group: Group) -> bool:
    """Return whether the chunks of tokens or their metadata differ from the digests in the side file."""
    known = side_part(store, group.path)
    if group.tokens is None or known is None or TOKENS not in known.block_digests:
        return False
    for name, digests in known.block_digests.items():
        if name.startswith(f"{group.tokens_name}/") and (file_digest(store, f"{group.path}/{name}"),) != digests:
            return True
    files = (f"{group.path}/{group.tokens_name}/{group.tokens.file_name(n)}" for n in range(group.tokens.num_files))
    return tuple(file_digest(store, file) for file in files) != known.block_digests[TOKENS]


def _scan(store: Store, array: AnyArray) -> tuple[IntArray, int, bool] | None:
    """Return the tokens with start bits, the largest id, and whether all chunks exist; None if one is damaged."""
    numbers: Sequence[int] = range(array.meta.num_files)
    if isinstance(array, ChunkArray):
        numbers = present_files(store, array).tolist()
    begins, highest = [np.empty(0, np.int64)], -1
    for number in numbers:
        place = number * array.meta.chunk_items
        for piece in array.scan(number):
            if isinstance(piece, Problem):
                return None
            begins.append(np.flatnonzero(piece & 1) + place)
            highest = max(highest, int(piece.max(initial=0)) >> 1)
            place += len(piece)
    return np.concatenate(begins), highest, len(numbers) == array.meta.num_files


def _rebuilt(store: Store, group: Group, begins: IntArray) -> tuple[IntArray | None, int]:
    """Return `seq_starts` by the start bits, None if they are right already, and the number of lost sequences."""
    num_tokens = 0 if group.tokens is None else group.tokens.num_items
    if num_tokens and (not len(begins) or begins[0] != 0):
        begins = np.concatenate([np.zeros(1, np.int64), begins])
    current = _current(store, group)
    if current is not None and starts_problem(group, current, num_tokens) is None:
        filled = current[:-1][current[1:] > current[:-1]]
        if len(filled) == len(begins) and (filled == begins).all():
            return None, 0
    lost = 0 if current is None else max(0, len(current) - 1 - len(begins))
    return np.append(begins, num_tokens), lost


def _current(store: Store, group: Group) -> IntArray | None:
    """Return the existing `seq_starts`; None if they can't be read."""
    if group.starts is None or group.starts.num_items == 0:
        return None
    try:
        array = open_array(store, f"{group.path}/{STARTS}", group.starts, "auto", _BUDGET_BYTES, is_empty=True)
        return array.read(0, group.starts.num_items).view(np.int64)
    except PenstockError:
        return None


def _rewrites(store: Store, plan: _Plan, more: str, *, write: bool) -> Iterator[Rewrite]:
    """Yield the arrays and attributes of a plan; `more` is what the side file tells about lost sequences."""
    group = plan.group
    if write and plan.starts is not None and not store.stages_folders:
        hint = "Copy the group to this machine, repair it, and upload it under a new name"
        raise Unsupported("an array in this store can't be replaced atomically", path=group.path, hint=hint)
    outer = side_place(store, group.path)[0].removesuffix(".penstock")
    copy = outer + group.path.removeprefix(outer).replace("/", ".")
    if write:
        for folder in {group.path, outer}:
            _drop_consolidated(store, folder, copy)

    def keep(store: Store, path: str) -> str:
        return _keep(store, path, f"{copy}.{path.rpartition('/')[2].lstrip('.')}.bak")

    if plan.starts is not None:
        what = f"rebuild `seq_starts` from the start bits: {len(plan.starts) - 1} sequences"
        if plan.lost:
            what += f", {plan.lost} fewer than before, as empty ones have no start bit"
        make = functools.partial(_write_starts, store, group, plan.starts, outer)
        yield Rewrite(f"flat-tokens.{STARTS}", f"{group.path}/{STARTS}", what + more, make, keep=keep)
    if plan.limit is not None:
        where, what = f"{group.path}/{ATTRIBUTES_FILE[group.zarr_format]}", f"set `max_token_id` to {plan.limit}"
        make = functools.partial(_write_limit, store, group, plan.limit)
        yield Rewrite(f"flat-tokens.{LIMIT}", where, what, make, keep=keep)


def _write_starts(store: Store, group: Group, starts: IntArray, outer: str) -> None:
    meta = make_layout(group.path, group.zarr_format).starts_meta(0)
    folder = store.stage_folder(f"{group.path}/{STARTS}", overwrite=True, beside=outer, own=_array_files)
    work = ChunkWork(folder)
    try:
        array = ArrayWriter(work, "", meta)
        array.append(starts.astype(np.uint64))
        meta = array.finish()
        work.finish()
        work.write_all(encode_array(meta))
        folder.commit()
    finally:
        work.stop()
        folder.abort()


def _array_files(folder: str) -> list[str]:
    """Return the files that may belong to an array with damaged metadata."""
    walked = os.walk(folder, onerror=raised)
    names = [os.path.relpath(os.path.join(root, name), folder) for root, _, files in walked for name in files]
    meta = {*ARRAY_FILE.values(), *ATTRIBUTES_FILE.values()}
    return [name for name in names if name in meta or name.removeprefix("c/").isdecimal()]


def _write_limit(store: Store, group: Group, limit: int) -> None:
    name = ATTRIBUTES_FILE[group.zarr_format]
    found = parse_json(group.metadata.get(name, b"{}"), name)
    attributes: Json = {} if isinstance(found, Problem) else found
    if group.zarr_format == 3:
        attributes = dict(attributes.get("attributes") or {})
    data = encode_group(group.zarr_format, attributes | {LIMIT: limit})[name]
    put(store, f"{group.path}/{name}", data)


def _drop_consolidated(store: Store, folder: str, backup: str) -> None:
    """Remove consolidated metadata, which a repair makes wrong; zarr reads the files themselves then."""
    where = f"{folder}/{CONSOLIDATED_FILE}"
    if store.exists(where):
        _keep(store, where, f"{backup}.zmetadata.bak")
        store.delete(where)
    where = f"{folder}/zarr.json"
    if store.exists(where):
        found = parse_json(store.get(where), where)
        if not isinstance(found, Problem) and "consolidated_metadata" in found:
            _keep(store, where, f"{backup}.zarr.json.bak")
            del found["consolidated_metadata"]
            put(store, where, json.dumps(found, indent=2).encode())


def _keep(store: Store, path: str, wanted: str) -> str:
    """Copy a file or a folder to a free name; return that, or an empty text if there is nothing to keep."""
    if not store.exists(path):
        return ""
    backup, number = wanted, 0
    while store.exists(backup):
        number += 1
        backup = f"{wanted}{number}"
    files = list(store.list(path)) if store.is_folder(path) else [path]
    for file in files:
        with aborting(store.stage(backup + file.removeprefix(path))) as copy:
            copy.append_file(store.real_path(file))
            copy.commit()
    return backup
