"""What all formats share for checking data against their side file: what contradicts it is an error."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penstock._secrets import redact
from penstock.abc import Store, SupportsMmap
from penstock.codec.hashes import BLOCK_BYTES, hash_blocks
from penstock.formats._findings import MOST_FINDINGS, Run
from penstock.store.put import back_up
from penstock.store.side_file import NEXT, REPLACE, Facts, is_damaged, judged_manifest
from penstock.types import Action, Finding, Manifest

RESTORE = f"Restore the data; if the change was intended, {REPLACE}"
"""What to do about data that contradict their side file."""


def check_side_file(
    format_name: str, store: Store, data_path: str, side_path: str, facts: Callable[[], Facts], part: str | None = None
) -> tuple[Manifest | None, list[Finding]]:
    """The side file of data, whether it fits or not, and the finding where it does not.

    Args:
        format_name: the first part of codes.
        store: where both are.
        data_path: what the data are called in the finding.
        side_path: the side file.
        facts: tells of the data.
        part: the part of the side file that is meant.
    """
    manifest, differs = judged_manifest(store, side_path, facts, part)
    damaged = [one for one in (side_path, side_path + NEXT) if is_damaged(store, one)]
    if damaged:  # then it can't say what is wrong with the data either
        return manifest, [_not_proved(format_name, one, "is damaged") for one in damaged]
    if differs is None:
        return manifest, []
    if manifest is None:
        return None, [_not_proved(format_name, side_path, "can't be read")]
    return manifest, [
        Finding(f"{format_name}.changed", "error", data_path, None, differs.found, differs.stated, RESTORE)
    ]


def _not_proved(format_name: str, path: str, what: str) -> Finding:
    stated = f"the side file {what}, so the data can't be checked"
    fix = f"Restore it; if the data is right, {REPLACE}"
    return Finding(f"{format_name}.side-file", "error", path, None, stated, None, fix)


def not_mended(format_name: str, path: str, side_path: str) -> Action:
    """What `repair` answers where the data are not those that their side file knows: it proves nothing then."""
    what = f"not repaired: the data differs from {side_path}. Restore the data, or move that file away first"
    return Action(f"{format_name}.changed", path, what, possible=False)


def side_file_replaced(
    store: Store,
    side_path: str,
    known: Manifest | None,
    samples: str,
    num_samples: int,
    num_tokens: int | None = None,
    *,
    write: bool,
) -> str:
    """What `repair` says of the side file in whose place it puts one that says otherwise; a copy of it is kept.

    Only it still tells what was lost. Where it counts what the mended data hold, they are proved, and nothing is said.

    Args:
        store: where it is.
        side_path: the side file.
        known: what it says of the data, whether it fits or not; None where it can't be read, or is of others.
        samples: what they are called, such as "documents".
        num_samples: of the mended data.
        num_tokens: of the mended data; None where they are not counted.
        write: keep it; else it is only told.
    """
    if not store.exists(side_path):
        return ""
    stated = "belongs to other data"
    if known is not None:
        if known.num_samples == num_samples and num_tokens in (None, known.num_tokens):
            return ""
        tokens = "" if num_tokens is None or known.num_tokens is None else f" with {known.num_tokens:,} tokens"
        stated = f"counts {known.num_samples:,} {samples}{tokens}"
    return f"; the old side file {stated}" + (f", and is kept as {back_up(store, side_path)}" if write else "")


def begins_otherwise(
    store: Store, path: str, digests: Sequence[str], first: int = 0, *, is_whole: bool = False
) -> bool:
    """Whether a file that was cut does not begin as its side file knows it, by whole blocks of 64 MiB.

    Args:
        store: where it is.
        path: the file.
        digests: of its blocks, before it was cut.
        first: block to begin with.
        is_whole: whether nothing of it is missing: then its last block counts, too.
    """
    size_bytes = store.size(path)
    blocks = len(digests) if is_whole else min(size_bytes // BLOCK_BYTES, len(digests) - 1)
    starts = ((number, number * BLOCK_BYTES) for number in range(first, blocks))
    tasks = ((n, BlockTask(store, path, start, min(start + BLOCK_BYTES, size_bytes))) for n, start in starts)
    return any(block_digest(task) != digests[number] for number, task in tasks)


@dataclass(frozen=True, slots=True)
class BlockTask:
    """A block of a file whose digest is asked for."""

    store: Store
    path: str
    start_bytes: int
    stop_bytes: int

    @property
    def described(self) -> str:
        """What an error calls it."""
        return f"{redact(self.path)}, bytes {self.start_bytes} to {self.stop_bytes}"


def block_digest(task: BlockTask) -> str:
    """The digest of a block. Memory: the block where it can't be mapped."""
    start, stop = task.start_bytes, task.stop_bytes
    if isinstance(task.store, SupportsMmap):
        return hash_blocks(task.store.mmap(task.path)[start:stop])[0]
    return hash_blocks(np.frombuffer(task.store.get(task.path, start, stop - start), np.uint8))[0]


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
    """The files that a side file has digests of: blocks with others, and files that the data don't have.

    Args:
        store: where all are.
        format_name: the first part of codes.
        side_path: the side file.
        manifest: what it says.
        files: of the data: name in the side file → path.
        run: does the tasks: a block each.
        others: further names that a side file of this format may hold.
    """
    yield from check_names(format_name, side_path, manifest, {*files, *others})
    for name, path in files.items():
        digests = manifest.block_digests.get(name)
        if digests is not None:
            yield from check_block_digests(store, path, format_name, digests, RESTORE, run)


def check_names(format_name: str, side_path: str, manifest: Manifest, names: Collection[str]) -> Iterator[Finding]:
    """The digests of files that the data don't have: what proves no file of theirs proves nothing."""
    unknown = [name for name in manifest.block_digests if name not in names]
    for name in unknown[:MOST_FINDINGS]:
        found = f"digests of {name!r}, which is not a file of this dataset"
        yield Finding(f"{format_name}.side-file", "error", side_path, None, found, None, RESTORE)
    if len(unknown) > MOST_FINDINGS:
        found = f"{len(unknown) - MOST_FINDINGS} more names of files that aren't in this dataset"
        yield Finding(f"{format_name}.side-file", "error", side_path, None, found, None, RESTORE)


def check_bytes(format_name: str, path: str, manifest: Manifest, size_bytes: int) -> Iterator[Finding]:
    """What a side file says of the bytes of all files, held against what they are."""
    if size_bytes != manifest.size_bytes:
        stated = f"{manifest.size_bytes} bytes, as recorded in the side file"
        yield Finding(f"{format_name}.changed", "error", path, None, f"{size_bytes} bytes", stated, RESTORE)


def check_block_digests(
    store: Store, path: str, format_name: str, digests: tuple[str, ...], advice: str, run: Run = map
) -> Iterator[Finding]:
    """Blocks of 64 MiB whose digest is not the one of the side file; each of them is a task."""
    size_bytes = store.size(path)
    starts = range(0, size_bytes, BLOCK_BYTES)
    tasks = (BlockTask(store, path, start, min(size_bytes, start + BLOCK_BYTES)) for start in starts)
    for number, (start_bytes, found) in enumerate(zip(starts, run(block_digest, tasks), strict=True)):
        expected = digests[number] if number < len(digests) else None
        if found != expected:
            yield Finding(
                f"{format_name}.digest",
                "error",
                path,
                start_bytes,
                f"block {number} has the digest {found}",
                expected,
                advice,
            )
    num_blocks = -(-size_bytes // BLOCK_BYTES)
    if num_blocks < len(digests):
        found, stated = f"the file ends before block {num_blocks}", f"{len(digests)} blocks"
        yield Finding(f"{format_name}.digest", "error", path, size_bytes, found, stated, advice)
