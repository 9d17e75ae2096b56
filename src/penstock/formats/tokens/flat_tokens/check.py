"""Check a group: metadata, `seq_starts`, chunks, start bits, ids, and the side file's digests. Never writes."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence

import numpy as np

from penstock._limits import count_in
from penstock.errors import Corrupt, FormatError, NotFound, Truncated
from penstock.formats._findings import MOST_FINDINGS, Problem
from penstock.formats._folders import DEFAULT_SPLIT, lacks_default_split
from penstock.formats._manifest import file_digest
from penstock.formats._side_checks import RESTORE, check_bytes, check_names, check_side_file
from penstock.formats.tokens.flat_tokens.group import (
    LIMIT,
    SPLITS,
    STARTS,
    TOKENS,
    Group,
    find_group,
    group_facts,
    holds_array,
    read_group,
    side_place,
    splits_in,
)
from penstock.formats.tokens.flat_tokens.source import AnyArray, open_array, starts_problem
from penstock.formats.tokens.joined import check_digest
from penstock.formats.tokens.zarr.chunks import ChunkArray
from penstock.formats.tokens.zarr.foreign import ForeignArray
from penstock.formats.tokens.zarr.meta import (
    AGAIN,
    ATTRIBUTES_FILE,
    CONSOLIDATED_FILE,
    GROUP_FILE,
    REBUILD,
    ArrayMeta,
    fault,
    parse_json,
)
from penstock.store.base import Store
from penstock.types import Depth, Finding, IntArray, Manifest, OpenOptions, TokenArray

_SAMPLED_FILES = 16
_BUDGET_BYTES = 1 << 24
_HASH_BYTES = 1 << 24
_SAMPLED_DOCS = 1024


def check_flat_tokens(store: Store, path: str, options: OpenOptions, depth: Depth) -> list[Finding]:
    """Return the findings in the order of their files. Memory: 8 bytes per sequence, one chunk and 64 MiB.

    `quick` reads metadata, file sizes and all of `seq_starts`; `sample` also 16 chunks of tokens; `full` every byte.

    Raises:
        NotFound: there is nothing at `path`, or no such split.
        ConfigError: a split is named and the group has none.
    """
    path = path.rstrip("/") or path
    findings: list[Finding] = []
    for folder in groups_at(store, path, options.split):
        group = read_group(store, folder)
        findings += [problem.finding() for problem in group.problems]
        findings += _check_group(store, group, options, depth)
    if options.split is None and store.is_folder(path) and not holds_array(store, path):
        missing = [name for name in SPLITS if name not in splits_in(store, path)]
        if len(missing) < len(SPLITS):
            findings += [_no_split(store, path, name).finding() for name in missing]
    return findings


def groups_at(store: Store, path: str, split: str | None) -> list[str]:
    """Return the folders of single array groups: one, or each split of a dataset."""
    if split is None and store.is_folder(path) and not holds_array(store, path):
        return [f"{path}/{name}" for name in splits_in(store, path)] or [path]
    return [find_group(store, path, split)[0]]


def _check_group(store: Store, group: Group, options: OpenOptions, depth: Depth) -> Iterator[Finding]:
    yield from _check_consolidated(store, group)
    arrays = _open_arrays(store, group)
    for array in arrays.values():
        if isinstance(array, ForeignArray):
            problem = array.problem()
            if problem is not None:
                yield problem.finding()
                return
    tokens, starts_array = arrays.get(TOKENS), arrays.get(STARTS)
    yield from _check_limit(group, options)
    starts: IntArray | None = None
    if starts_array is not None:
        starts, findings = _read_starts(store, group, starts_array, tokens)
        yield from findings
    if tokens is not None:
        yield from _check_tokens(store, group, tokens, starts, depth)
        if depth != "quick" and starts is not None and options.eos_id is not None:
            yield from _check_eos(tokens, starts, options.eos_id, depth)
    yield from _check_side_file(store, group, tokens, starts, depth)


def _open_arrays(store: Store, group: Group) -> dict[str, AnyArray]:
    """Open the arrays whose metadata can be read."""
    found = {TOKENS: (group.tokens_name, group.tokens), STARTS: (STARTS, group.starts)}
    is_empty = group.tokens is not None and not isinstance(group.tokens, Problem) and group.tokens.num_items == 0
    return {
        label: open_array(store, f"{group.path}/{name}", meta, "auto", _BUDGET_BYTES, is_empty=is_empty)
        for label, (name, meta) in found.items()
        if meta is not None
    }


def _check_consolidated(store: Store, group: Group) -> Iterator[Finding]:
    """Compare the consolidated metadata, which zarr reads instead of the files, with the files."""
    where = f"{group.path}/{CONSOLIDATED_FILE}"
    if group.zarr_format != 2 or not store.exists(where):
        return
    copies = parse_json(store.get(where), where)
    listed = {} if isinstance(copies, Problem) else copies.get("metadata", {})
    for name, data in group.metadata.items():
        own = parse_json(data, name)
        if not isinstance(own, Problem) and listed.get(name) != own:
            what = f"the consolidated metadata differs from `{name}`"
            fix = "Consolidate again with zarr, or remove the file"
            yield Problem.warning("flat-tokens.metadata.consolidated", where, what, fix).finding()


def _check_limit(group: Group, options: OpenOptions) -> Iterator[Finding]:
    if options.vocab_size is not None and group.max_token_id is not None and group.max_token_id >= options.vocab_size:
        where = f"{group.path}/{ATTRIBUTES_FILE[group.zarr_format]}"
        what, fix = "ids may be outside the vocabulary", "Use the tokenizer that produced them, or correct --vocab-size"
        found, expected = f"{LIMIT} {group.max_token_id}", f"below {options.vocab_size}"
        yield fault("token-range", Corrupt, where, what, fix, None, found, expected).finding()
    for name, meta in ((group.tokens_name, group.tokens), (STARTS, group.starts)):
        if meta is not None and not meta.chain.stored.isnative:
            what, fix = "numbers are stored big-endian", "`penstock convert` writes them little-endian"
            yield Problem.warning("flat-tokens.byte-order", f"{group.path}/{name}", what, fix).finding()


def _no_split(store: Store, path: str, name: str) -> Problem:
    if name == DEFAULT_SPLIT and lacks_default_split(store, path, splits_in(store, path)):
        what = f"the split {name} has no {' or '.join(GROUP_FILE.values())}"
        return fault("dataset.splits", Corrupt, f"{path}/{name}", what, AGAIN)
    what = f"the dataset has no split `{name}`"
    fix = f"Write it (split={name!r}), or open the other split as a single array"
    return fault("dataset.splits", Corrupt, path, what, fix, None, None, " and ".join(SPLITS))


def _read_starts(
    store: Store, group: Group, array: AnyArray, tokens: AnyArray | None
) -> tuple[IntArray | None, list[Finding]]:
    """Return `seq_starts`, None if they aren't borders of sequences, and their findings."""
    count = array.meta.num_items
    if count == 0:
        return None, []
    if isinstance(array, ChunkArray):
        present = present_files(store, array)
        pieces = (piece for number in present.tolist() for piece in array.scan(number))
        findings = [*missing_files(array, present), *(one.finding() for one in pieces if isinstance(one, Problem))]
        if findings:
            return None, findings
    try:
        starts = array.read(0, count).view(np.int64)
    except FormatError as error:
        return None, [Problem.of_error(f"flat-tokens.{STARTS}.read", error, AGAIN, f"{group.path}/{STARTS}").finding()]
    end = int(starts[-1]) if tokens is None else tokens.meta.num_items
    problem = starts_problem(group, starts, end)
    return (starts, []) if problem is None else (None, [problem.finding()])


def present_files(store: Store, array: ChunkArray) -> IntArray:
    """Return int64[n], the numbers of existing chunk files, sorted."""
    folder, meta = array.files.folder, array.meta
    start = f"{folder}/{meta.key_start}"
    names = (path[len(start) :] for path in store.list(folder) if path.startswith(start))
    numbers = ((name, count_in(name, meta.num_files)) for name in names)
    return np.array(sorted(number for name, number in numbers if number is not None and name == str(number)), np.int64)


def missing_files(array: ChunkArray, present: IntArray) -> Iterator[Finding]:
    """Return the findings of missing chunk files."""
    count = array.meta.num_files - len(present)
    if count == 0 or array.meta.fill is not None:
        return
    for number in _absent(array.meta, present, MOST_FINDINGS):
        what = "a chunk file is missing"
        yield fault("chunk.present", Truncated, array.files.path(number), what, AGAIN, None, None, "a file").finding()
    if count > MOST_FINDINGS:
        what = f"{count - MOST_FINDINGS} more chunk files are missing"
        yield fault("chunk.present", Truncated, array.files.folder, what, AGAIN).finding()


def _absent(meta: ArrayMeta, present: IntArray, most: int) -> list[int]:
    """Return the first numbers of missing chunk files."""
    found: list[int] = []
    expected = 0
    for number in [*present.tolist(), meta.num_files]:
        found += range(expected, min(number, expected + most - len(found)))
        expected = number + 1
    return found


def _check_tokens(
    store: Store, group: Group, array: AnyArray, starts: IntArray | None, depth: Depth
) -> Iterator[Finding]:
    present: Sequence[int] = range(array.meta.num_files)
    if isinstance(array, ChunkArray):
        numbers = present_files(store, array)
        yield from missing_files(array, numbers)
        yield from _check_sizes(array, numbers)
        present = numbers.tolist()
    if depth == "quick":
        return
    chosen = present
    if depth == "sample" and len(present) > _SAMPLED_FILES:
        chosen = [present[place] for place in np.linspace(0, len(present) - 1, _SAMPLED_FILES, dtype=np.int64)]
    bits = _BitFindings(group, array)
    sized = isinstance(array, ChunkArray) and array.meta.chain.raw and array.meta.shard is None
    largest, where = -1, ""
    for number in chosen:
        place = number * array.meta.chunk_items
        path = array.files.path(number) if isinstance(array, ChunkArray) else f"{group.path}/{group.tokens_name}"
        for piece in array.scan(number):
            if isinstance(piece, Problem):
                if not sized or piece.code != "flat-tokens.chunk.size":  # else found above
                    yield piece.finding()
                break
            highest = int(piece.max(initial=0)) >> 1
            largest, where = (highest, path) if highest > largest else (largest, where)
            if starts is not None:
                bits.compare(place, piece, starts, path)
            place += len(piece)
    yield from bits.findings()
    if group.max_token_id is not None and largest > group.max_token_id:
        what, found = "an id is above `max_token_id`", f"id {largest}"
        expected = f"at most {group.max_token_id}"
        yield fault(f"{LIMIT}.covers", Corrupt, where, what, REBUILD, None, found, expected).finding()


def _check_sizes(array: ChunkArray, present: IntArray) -> Iterator[Finding]:
    """Uncompressed chunks have exactly one size."""
    meta = array.meta
    if not meta.chain.raw or meta.shard is not None:
        return
    expected = meta.chunk_items * meta.chain.stored.itemsize + meta.chain.checksum_bytes
    for path in map(array.files.path, present.tolist()):
        size_bytes = array.files.store.size(path)
        if size_bytes != expected:
            sizes = min(size_bytes, expected), f"{size_bytes} bytes", f"{expected} bytes"
            yield fault("chunk.size", Truncated, path, "the chunk has the wrong size", AGAIN, *sizes).finding()


class _BitFindings:
    """Differences between start bits and `seq_starts`: the first ones, and the number of the others."""

    def __init__(self, group: Group, array: AnyArray) -> None:
        self._group = group
        in_place = isinstance(array, ChunkArray) and array.meta.chain.raw and array.meta.shard is None
        self._chunk_items = array.meta.chunk_items if in_place else None
        self._found: dict[str, list[Finding]] = {"first_bit.set_at_starts": [], "first_bit.clear_elsewhere": []}
        self._counts = dict.fromkeys(self._found, 0)

    def compare(self, place: int, encoded: IntArray, starts: IntArray, path: str) -> None:
        """Compare the tokens starting at `place`."""
        set_bits = np.flatnonzero(encoded & 1) + place
        low, high = np.searchsorted(starts, (place, place + len(encoded)))
        expected = np.unique(starts[low:high])
        if len(set_bits) == len(expected) and (set_bits == expected).all():
            return
        unset, extra = np.setdiff1d(expected, set_bits), np.setdiff1d(set_bits, expected)
        self._add("first_bit.set_at_starts", unset, path, "starts a sequence without its start bit")
        self._add("first_bit.clear_elsewhere", extra, path, "has a start bit but starts no sequence")

    def findings(self) -> Iterator[Finding]:
        """Yield a finding per difference, up to `MOST_FINDINGS` of a kind, then the number of the others."""
        for code, found in self._found.items():
            yield from found
            if self._counts[code] > len(found):
                what = f"{self._counts[code] - len(found)} more tokens like these"
                yield fault(code, Corrupt, f"{self._group.path}/{STARTS}", what, REBUILD).finding()

    def _add(self, code: str, places: IntArray, path: str, what: str) -> None:
        self._counts[code] += len(places)
        for place in places[: MOST_FINDINGS - len(self._found[code])].tolist():
            offset_bytes = None if self._chunk_items is None else place % self._chunk_items * 4
            expected = "start bits exactly where `seq_starts` has entries"
            problem = fault(code, Corrupt, path, f"token {place} {what}", REBUILD, offset_bytes, None, expected)
            self._found[code].append(problem.finding())


def _check_eos(array: AnyArray, starts: IntArray, eos_id: int, depth: Depth) -> Iterator[Finding]:
    """Find sequences that don't end in `eos_id`."""
    docs = np.flatnonzero(starts[1:] > starts[:-1])
    if depth == "sample" and len(docs) > _SAMPLED_DOCS:
        docs = docs[np.linspace(0, len(docs) - 1, _SAMPLED_DOCS, dtype=np.int64)]
    last = np.empty((len(docs), 1), np.uint32)
    try:
        array.gather(starts[docs + 1] - 1, 1, last)
    except FormatError:
        return  # known from reading the chunks
    wrong = docs[last[:, 0] >> 1 != eos_id]
    folder = array.files.folder if isinstance(array, ChunkArray) else ""
    for doc in wrong[:MOST_FINDINGS].tolist():
        what, fix = f"sequence {doc} doesn't end with the EOS id", "Correct --eos-id, or pack again with --eos"
        yield fault("no-eos", Corrupt, folder, what, fix, None, None, f"id {eos_id}").finding()
    if len(wrong) > MOST_FINDINGS:
        what = f"{len(wrong) - MOST_FINDINGS} more sequences without EOS"
        yield fault("no-eos", Corrupt, folder, what, "As above").finding()


def _check_side_file(
    store: Store, group: Group, tokens: AnyArray | None, starts: IntArray | None, depth: Depth
) -> Iterator[Finding]:
    if group.tokens is None or group.starts is None:
        return
    side_path, part = side_place(store, group.path)
    facts = functools.partial(group_facts, store, group)
    try:
        manifest, findings = check_side_file("flat-tokens", store, group.path, side_path, facts, part)
    except NotFound as error:  # the first or the last chunk, which zarr reads as zeros
        what, fix = "a chunk recorded in the side file is missing", RESTORE
        yield fault("changed", Corrupt, os.fspath(error.path or group.path), what, fix).finding()
        return
    if depth == "full" and manifest is not None:
        findings += _check_digests(store, group, manifest, side_path)
        if not findings and tokens is not None and starts is not None:
            findings += check_digest("flat-tokens", group.path, _Ids(tokens), starts, manifest, map)
    yield from findings


class _Ids:
    """The ids of an array, as `check_digest` reads them."""

    def __init__(self, array: AnyArray) -> None:
        self._array = array

    def tokens(self, start: int, stop: int) -> TokenArray:
        return self._array.read(start, stop, 1)


def _check_digests(store: Store, group: Group, manifest: Manifest, side_path: str) -> Iterator[Finding]:
    """Compare the files with their recorded digests."""
    arrays = {TOKENS: (group.tokens_name, group.tokens), STARTS: (STARTS, group.starts)}
    known, size_bytes, whole = {*arrays, *group.metadata}, 0, bool(manifest.block_digests)
    yield from check_names("flat-tokens", side_path, manifest, known)
    for name, digests in manifest.block_digests.items():
        if name not in known:
            continue  # `check_names` reports it
        folder, meta = arrays.get(name, (name, None))
        num_files = 1 if meta is None else meta.num_files
        if len(digests) != num_files:
            what, expected = f"`{name}` is {num_files} files", f"{len(digests)}, as recorded in the side file"
            yield fault("digest", Corrupt, f"{group.path}/{folder}", what, RESTORE, None, None, expected).finding()
            continue
        names = [name] if meta is None else [f"{folder}/{meta.file_name(n)}" for n in range(num_files)]
        for file, expected in zip(names, digests, strict=True):
            path = f"{group.path}/{file}"
            found = file_digest(store, path)
            size_bytes += store.size(path) if found else 0
            whole &= found == expected
            if found != expected:
                what = "a file is missing" if found == "" else "the content differs from the digest in the side file"
                yield fault("digest", Corrupt, path, what, RESTORE, 0, found or None, expected).finding()
    if whole and size_bytes != manifest.size_bytes:  # else the group has other files as well
        yield from check_bytes("flat-tokens", group.path, manifest, sum(map(store.size, store.list(group.path))))
