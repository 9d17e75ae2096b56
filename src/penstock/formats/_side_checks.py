"""Checks of data against its side file, shared by all formats."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock._secrets import redact
from penstock.codec.hashes import BLOCK_BYTES, hash_blocks
from penstock.formats._findings import MOST_FINDINGS, Run
from penstock.store.base import Store
from penstock.store.names import NEXT
from penstock.store.side_file import REPLACE, Facts, is_damaged, judged_manifest
from penstock.types import Finding, Manifest

RESTORE = f"Restore the data; if the change was intended, {REPLACE}"
"""Fix for data that contradicts its side file."""


def check_side_file(
    format_name: str, store: Store, data_path: str, side_path: str, facts: Callable[[], Facts], part: str | None = None
) -> tuple[Manifest | None, list[Finding]]:
    """Return the side file, even if the data differs, and the findings if it differs or is damaged.

    Args:
        format_name: first part of codes.
        store: where both are.
        data_path: path of the data in findings.
        side_path: the side file.
        facts: reads the facts of the data.
        part: part of the side file that describes the data.
    """

    def unproved(path: str, what: str) -> Finding:
        stated = f"the side file {what}, so the data can't be checked"
        fix = f"Restore it; if the data is right, {REPLACE}"
        return Finding(f"{format_name}.side-file", "error", path, None, stated, None, fix)

    manifest, differs = judged_manifest(store, side_path, facts, part)
    damaged = [one for one in (side_path, side_path + NEXT) if is_damaged(store, one)]
    if damaged:  # a damaged side file can't tell what is wrong with the data
        return manifest, [unproved(one, "is damaged") for one in damaged]
    if differs is None:
        return manifest, []
    if manifest is None:
        return None, [unproved(side_path, "can't be read")]
    return manifest, [
        Finding(f"{format_name}.changed", "error", data_path, None, differs.found, differs.stated, RESTORE)
    ]


def begins_otherwise(
    store: Store, path: str, digests: Sequence[str], first: int = 0, *, is_whole: bool = False
) -> bool:
    """Return whether the blocks of 64 MiB at the start of a truncated file differ from their recorded digests.

    Args:
        store: where it is.
        path: the file.
        digests: of the blocks of the whole file.
        first: block to begin with.
        is_whole: the file isn't truncated, so its last block is compared too.
    """
    size_bytes = store.size(path)
    blocks = len(digests) if is_whole else min(size_bytes // BLOCK_BYTES, len(digests) - 1)
    starts = ((number, number * BLOCK_BYTES) for number in range(first, blocks))
    tasks = ((n, BlockTask(store, path, start, min(start + BLOCK_BYTES, size_bytes))) for n, start in starts)
    return any(block_digest(task) != digests[number] for number, task in tasks)


@dataclass(frozen=True, slots=True)
class BlockTask:
    store: Store
    path: str
    start_bytes: int
    stop_bytes: int

    @property
    def described(self) -> str:
        return f"{redact(self.path)}, bytes {self.start_bytes} to {self.stop_bytes}"


def block_digest(task: BlockTask) -> str:
    """Return the digest of a block. Memory: the block, unless it can be mapped."""
    start, stop = task.start_bytes, task.stop_bytes
    return hash_blocks(task.store.view(task.path, start, stop - start))[0]


def check_files(
    store: Store,
    format_name: str,
    side_path: str,
    manifest: Manifest,
    files: Mapping[str, str],
    run: Run = map,
    *,
    others: Collection[str] = (),
) -> Iterator[Finding]:
    """Yield findings of blocks that differ from their digests, and of recorded files that the data doesn't have.

    Args:
        store: where all are.
        format_name: first part of codes.
        side_path: the side file.
        manifest: its content.
        files: of the data: name in the side file → path.
        run: runs the tasks, one per block.
        others: other names that a side file of this format may record.
    """
    yield from check_names(format_name, side_path, manifest, {*files, *others})
    for name, path in files.items():
        digests = manifest.block_digests.get(name)
        if digests is not None:
            yield from check_block_digests(store, path, format_name, digests, RESTORE, run)


def check_names(format_name: str, side_path: str, manifest: Manifest, names: Collection[str]) -> Iterator[Finding]:
    """Yield findings of recorded digests of files that the data doesn't have."""
    unknown = [name for name in manifest.block_digests if name not in names]
    found = [f"digests of {name!r}, which is not a file of this dataset" for name in unknown[:MOST_FINDINGS]]
    if len(unknown) > MOST_FINDINGS:
        found.append(f"{len(unknown) - MOST_FINDINGS} more names of files that aren't in this dataset")
    for one in found:
        yield Finding(f"{format_name}.side-file", "error", side_path, None, one, None, RESTORE)


def check_bytes(format_name: str, path: str, manifest: Manifest, size_bytes: int) -> Iterator[Finding]:
    """Yield a finding if the size of all files differs from the recorded one."""
    if size_bytes != manifest.size_bytes:
        stated = f"{manifest.size_bytes} bytes, as recorded in the side file"
        yield Finding(f"{format_name}.changed", "error", path, None, f"{size_bytes} bytes", stated, RESTORE)


def differing_block(digests: Sequence[str], recorded: Sequence[str]) -> int | None:
    """Return the number of the first block that differs from its recorded digest, or that only one of them has."""
    pairs = itertools.zip_longest(digests, recorded)
    return next((number for number, (found, expected) in enumerate(pairs) if found != expected), None)


def check_block_digests(
    store: Store, path: str, format_name: str, digests: tuple[str, ...], advice: str, run: Run = map
) -> Iterator[Finding]:
    """Yield findings of blocks of 64 MiB that differ from their recorded digests; each block is a task."""
    size_bytes = store.size(path)
    starts = range(0, size_bytes, BLOCK_BYTES)
    tasks = (BlockTask(store, path, start, min(size_bytes, start + BLOCK_BYTES)) for start in starts)
    for number, (start_bytes, found) in enumerate(zip(starts, run(block_digest, tasks), strict=True)):
        expected = digests[number] if number < len(digests) else None
        if found != expected:
            what = f"block {number} has the digest {found}"
            yield Finding(f"{format_name}.digest", "error", path, start_bytes, what, expected, advice)
    num_blocks = -(-size_bytes // BLOCK_BYTES)
    if num_blocks < len(digests):
        found, stated = f"the file ends before block {num_blocks}", f"{len(digests)} blocks"
        yield Finding(f"{format_name}.digest", "error", path, size_bytes, found, stated, advice)
