"""The side file: records of our writers about data that the format itself can't store.

`<file>.penstock` next to a file, `.penstock` in a directory, `<group>.penstock` next to a zarr group: a `Manifest` as
one JSON document. It is never needed to open data, and it is only valid while it matches the data next to it.

Data and the files next to it can't change atomically. So when data is replaced, the new side file (and the index, if it
is a separate file) is first written as `<name>.next`. Then the data is replaced, then the side file gets its final
name. Readers try the side file, then `.next`, and use the one that matches the data: a writer that is killed at any
time leaves either the old dataset or the new one. If both match, because size and edges are the same, the first block
that differs decides. The next writer, or `repair`, removes leftovers. This works in all stores, because the data itself
changes atomically.

The last key, `check`, is xxh3-128 of the document without this key. Only `verify` checks it. Side files of older
versions don't have it, and contain only keys of a `Manifest`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import msgspec
import xxhash

from penstock._secrets import logger, redact
from penstock.abc import Staged
from penstock.codec.hashes import BLOCK_BYTES
from penstock.errors import Corrupt, Denied, NotFound, PenstockError
from penstock.store._leftovers import nth_staged_name
from penstock.store.base import Store
from penstock.store.names import NEXT
from penstock.store.outputs import require_own_side_file
from penstock.store.put import aborting, append_all, put
from penstock.types import Action, Manifest

EDGE_BYTES = 4096
DATA = "data"
"""Name of the file of a single-file format in block digests, because a copy may have another file name."""
REPLACE = "`penstock verify --replace-manifest` creates a new side file"
"""Hint if the side file is wrong, not the data."""

_MOST_BYTES = 1 << 28
_END, _SEAL = b"\n}\n", b',\n "check": "%s"\n}\n'
_SEAL_BYTES = len(_SEAL % (b"0" * 32))
_log = logger(__name__)
_FINGERPRINT = "^[0-9a-f]{32}$"


@dataclass(frozen=True, slots=True)
class Facts:
    """Properties of the data itself, to compare with a side file; None if unknown.

    Attributes:
        format: format name.
        binding, size_bytes, num_samples, num_tokens: as in `Manifest`.
        most_samples: upper limit on the number of samples, if they aren't counted.
        block_digest: returns the digest of a block, from a name in `Manifest.block_digests` and a block number; None if
            this block can't be read by itself.
    """

    format: str | None = None
    binding: str | None = None
    size_bytes: int | None = None
    num_samples: int | None = None
    num_tokens: int | None = None
    most_samples: int | None = None
    block_digest: Callable[[str, int], str | None] | None = None


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Actual and recorded value of a property that differs; both None for an unreadable side file."""

    found: str | None = None
    stated: str | None = None


def encode_manifest(manifest: Manifest) -> bytes:
    data = msgspec.json.format(msgspec.json.encode(_content(manifest), order="sorted"), indent=1) + b"\n"
    return _sealed(redact(data.decode()).encode() if b"://" in data else data)


def _content(manifest: Manifest) -> dict[str, Any]:
    """Return the keys of a side file; planes, exclude list and unknown text only if they aren't empty."""
    content = {one.name: getattr(manifest, one.name) for one in fields(manifest)}
    if manifest.planes is None:
        del content["planes"]
    if not manifest.has_exclude_list:
        del content["has_exclude_list"]
    if manifest.unknown_text is None:
        del content["unknown_text"]
    return content | {"parts": {name: _content(part) for name, part in manifest.parts.items()}}


def _sealed(data: bytes) -> bytes:
    return data.removesuffix(_END) + _SEAL % xxhash.xxh3_128_hexdigest(data).encode()


def is_damaged(store: Store, side_path: str) -> bool:
    """Return whether a readable side file is known to differ from what was written."""
    if load_manifest(store, side_path) is None:
        return False
    data = store.get(side_path)
    if data == _sealed(data[:-_SEAL_BYTES] + _END):
        return False
    try:
        return not set(msgspec.json.decode(data)) <= {one.name for one in fields(Manifest)}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # in parts that a typed reader skips
        return True


def decode_manifest(data: bytes) -> Manifest | None:
    """Return the manifest in a side file, or None if it isn't one."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return manifest if all(map(_can_be, (manifest, *manifest.parts.values()))) else None


def _can_be(manifest: Manifest) -> bool:
    counts = (manifest.num_samples, manifest.size_bytes, manifest.num_tokens, manifest.max_token_id, manifest.eos_id)
    plain = all(re.match(_FINGERPRINT, one) for one in manifest.fingerprints.values())
    return plain and all(count is None or 0 <= count < 1 << 63 for count in counts)


def file_binding(store: Store, path: str) -> str:
    """Return a short digest of a file's size and its first and last 4 KiB: three cheap reads at any size."""
    size_bytes = store.size(path)
    head, tail = (0, min(EDGE_BYTES, size_bytes)), (max(0, size_bytes - EDGE_BYTES), size_bytes)
    if store.keeps_copies:  # don't fetch the whole file
        return edge_binding(size_bytes, *store.peek(path, [head, tail]))
    return edge_binding(size_bytes, *(store.get(path, start, EDGE_BYTES) for start, _ in (head, tail)))


def edge_binding(size_bytes: int, head: bytes | bytearray, tail: bytes | bytearray) -> str:
    """Return `file_binding` of a file that isn't visible yet."""
    hasher = xxhash.xxh3_128(size_bytes.to_bytes(8, "little"))
    hasher.update(head)
    hasher.update(tail)
    return hasher.hexdigest()


def load_manifest(store: Store, side_path: str, *, to_write: bool = False) -> Manifest | None:
    """Return the manifest in a side file without comparing it with the data, or None if it can't be read.

    With `to_write`, missing permissions are an error, because a writer depends on the manifest.
    """
    try:
        return None if store.size(side_path) > _MOST_BYTES else decode_manifest(store.get(side_path))
    except (NotFound, Denied):
        return None
    except PermissionError:
        if to_write:
            raise
        _log.warning("%s: no permission to read this side file, so it is ignored", side_path)
        return None


class _Recorded(msgspec.Struct, gc=False):
    """Only the fingerprints of a side file, to skip the digests of up to 10^6 files."""

    fingerprints: dict[str, Annotated[str, msgspec.Meta(pattern=_FINGERPRINT)]] = {}


def recorded_fingerprints(store: Store, side_path: str) -> dict[str, str]:
    """Return `Manifest.fingerprints` of a side file; empty if it can't be read."""
    try:
        data = b"{}" if store.size(side_path) > _MOST_BYTES else store.get(side_path)
        return msgspec.json.decode(data, type=_Recorded).fingerprints
    except (NotFound, Denied, PermissionError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}


# --- matching ----------------------------------------------------------------------------------------------------


def contradiction(manifest: Manifest, facts: Facts) -> Contradiction | None:
    """Return how data differs from its side file, or None if it matches."""
    found: list[str] = []
    expected: list[str] = []
    for unit in ("format", "size_bytes", "num_samples", "num_tokens"):
        known, said = getattr(facts, unit), getattr(manifest, unit)
        if known is not None and known != said:
            word = unit.removeprefix("num_").removeprefix("size_")
            found.append(str(known) if unit == "format" else f"{known} {word}")
            expected.append(str(said) if unit == "format" else f"{said} {word}")
    if facts.most_samples is not None and manifest.num_samples > facts.most_samples:
        found.append(f"room for {facts.most_samples} samples")
        expected.append(f"{manifest.num_samples} samples")
    if not found and facts.binding is not None and facts.binding != manifest.binding:
        found.append("different bytes at the beginning or end of a file")
    if not found:
        return None
    return Contradiction(", ".join(found), f"{', '.join(expected)}, as recorded in the side file" if expected else None)


def fitting_manifest(
    store: Store, side_path: str, facts: Callable[[], Facts], part: str | None = None
) -> Manifest | None:
    """Return the manifest of the side file, or of the next one, that matches the data, or None.

    Args:
        store: store of both files.
        side_path: path of the side file.
        facts: returns the facts of the data; called if there is a side file. May raise `NotFound`.
        part: part of the side file to use.

    Raises:
        Corrupt: both match, and the data can't be distinguished.
    """
    return _fitting(store, side_path, facts, part)[0]


def _fitting(
    store: Store, side_path: str, facts: Callable[[], Facts], part: str | None
) -> tuple[Manifest | None, bool]:
    """Return the result of `fitting_manifest`, and whether it comes from the next side file."""
    manifest = _part(load_manifest(store, side_path), part)
    if manifest is not None and not _fits(manifest, facts):
        manifest = None
    if manifest is not None and not store.is_local:  # saves a request each time data is opened
        return manifest, False
    waiting = _part(load_manifest(store, side_path + NEXT), part)
    if waiting is None or not _fits(waiting, facts):
        return manifest, False
    if manifest is None or _is_of_next(manifest, waiting, facts(), side_path):
        return waiting, True
    return manifest, False


def _is_of_next(manifest: Manifest, waiting: Manifest, facts: Facts, side_path: str) -> bool:
    """Return whether data that matches two side files belongs to the second one, by the first block that differs.

    Raises:
        Corrupt: no block that differs can be read here.
    """
    before, after = manifest.block_digests, waiting.block_digests
    if before == after:
        return False
    for name in sorted(before.keys() & after.keys()):
        for place, digests in enumerate(zip(before[name], after[name], strict=False)):
            if digests[0] != digests[1]:
                found = None if facts.block_digest is None else facts.block_digest(name, place)
                if found is not None:
                    return found == digests[1]
    raise Corrupt(
        "the data is being replaced, or its writer was interrupted, and old and new data can't be distinguished",
        path=side_path,
        found=f"two matching side files, this one and {NEXT.lstrip('.')!r}",
        hint="If no command is running, re-run the one that was replacing the data",
    )


def judged_manifest(
    store: Store, side_path: str, facts: Callable[[], Facts], part: str | None = None
) -> tuple[Manifest | None, Contradiction | None]:
    """Return the manifest of a side file, and how the data differs; `(None, None)` without a side file.

    Arguments are as in `fitting_manifest`.
    """
    manifest = fitting_manifest(store, side_path, facts, part)
    if manifest is not None or not store.exists(side_path):
        return manifest, None
    whole = load_manifest(store, side_path)
    manifest = _part(whole, part)
    if manifest is None:
        return None, Contradiction() if whole is None else None
    return manifest, contradiction(manifest, facts())


def file_facts(store: Store, path: str, format_name: str | None = None, **counts: int | None) -> Facts:
    """Return the facts of a dataset of one file: its size and edges, and the given counts."""
    digest = blocks_of(store, {DATA: path})
    return Facts(format_name, file_binding(store, path), store.size(path), **counts, block_digest=digest)


def blocks_of(store: Store, files: Mapping[str, str]) -> Callable[[str, int], str | None]:
    """Return the function `Facts.block_digest` for files, given by their names in `Manifest.block_digests`."""

    def digest(name: str, place: int) -> str | None:
        if name not in files:
            return None
        return xxhash.xxh3_128_hexdigest(store.get(files[name], place * BLOCK_BYTES, BLOCK_BYTES))

    return digest


def read_side_file(store: Store, side_path: str, data_path: str) -> Manifest | None:
    """Return the manifest next to a data file, or None if there is none or it doesn't match the data."""
    return fitting_manifest(store, side_path, lambda: file_facts(store, data_path))


def _fits(manifest: Manifest, facts: Callable[[], Facts]) -> bool:
    return _is_true(lambda: contradiction(manifest, facts()) is None)


def _part(manifest: Manifest | None, part: str | None) -> Manifest | None:
    return manifest if manifest is None or part is None else manifest.parts.get(part)


# --- writing -----------------------------------------------------------------------------------------------------


def stage_beside(store: Store, path: str, *, replaces: bool) -> Staged:
    """Start a file next to data; if the data replaces others, under a name that counts only with the new data."""
    return store.stage(path + NEXT if replaces else path, overwrite=True)


def stage_side_file(store: Store, side_path: str, manifest: Manifest, *, replaces: bool) -> Staged:
    staged = stage_beside(store, side_path, replaces=replaces)
    try:
        staged.write(encode_manifest(manifest))
    except BaseException:
        staged.abort()
        raise
    return staged


def publish_beside(
    store: Store,
    beside: Sequence[Staged],
    publish: Callable[[], object],
    landed: Callable[[], bool],
    *,
    stale: Sequence[str] = (),
) -> None:
    """Publish the files next to data, then the data, then give these files their final names.

    Local indexes of the old data get hidden names before, so that other tools never read them with the new data.

    Args:
        store: store of all files.
        beside: files from `stage_beside`, the side file last.
        publish: makes the data, which is durable already, visible.
        landed: returns whether the data is visible; called after an error; `NotFound` means no.
        stale: other indexes of the old data, which are removed.

    Raises:
        ConfigError: a file that is not a side file, or a directory, is in its place.
    """
    begun: list[Staged] = []
    hidden: dict[str, str] = {}
    try:
        for staged in beside:
            staged.sync()
        require_own_side_file(store, beside[-1].path)  # another file may have appeared since the claim
        for staged in reversed(beside):  # the side file first, because it identifies the other files as ours
            begun.append(staged)
            if not staged.path.endswith(NEXT):
                _drop(store, staged.path + NEXT)
            staged.commit()
        replaced = [one.path.removesuffix(NEXT) for one in beside[:-1] if one.path.endswith(NEXT)]
        for path in (*replaced, *stale) if store.is_local else ():
            if store.exists(path):
                hidden[path] = _hidden_path(path)
                store.rename(path, hidden[path])
        publish()
    except BaseException:
        for staged in beside:
            staged.abort()
        with contextlib.suppress(PenstockError, OSError):
            is_new = _is_true(landed)
            for staged in begun:
                (_promote_new if is_new else _drop)(store, staged.path)
            for path in hidden:
                _drop(store, hidden[path]) if is_new else store.rename(hidden[path], path)
        raise
    for staged in beside:
        _promote_new(store, staged.path)
    for path in hidden.values() if store.is_local else stale:
        _drop(store, path)


def _hidden_path(path: str) -> str:
    """Return the name of an old index while its data is replaced; the next writer removes such files."""
    folder, name = os.path.split(path)
    return os.path.join(folder, nth_staged_name(name + NEXT, 0))


def _promote_new(store: Store, path: str) -> None:
    if path.endswith(NEXT):
        try:
            promote(store, path)
        except OSError:
            promote(store, path)


def _is_true(answer: Callable[[], bool]) -> bool:
    try:
        return answer()
    except NotFound:
        return False


def promote(store: Store, next_path: str) -> None:
    """Give a file that ends in `.next` its final name, as `move_file` does."""
    move_file(store, next_path, next_path.removesuffix(NEXT))


def move_file(store: Store, path: str, name: str) -> None:
    """Give a file another name in its directory; in a store without renames, both names exist for a moment."""
    if store.is_local:
        store.rename(path, name)
        return
    with aborting(store.stage(name, overwrite=True)) as copy:
        append_all(copy, store, path)
        copy.commit()
    store.delete(path)


def replace_side_file(store: Store, side_path: str, manifest: Manifest, *, replace: bool) -> None:
    """Write the side file of existing data after every byte was read.

    Raises:
        Corrupt: a different side file exists, and `replace` is false.
    """
    if not replace and store.exists(side_path):
        known = [load_manifest(store, path) for path in (side_path, side_path + NEXT)]
        if not any(one is not None and _disagreement(one, manifest) is None for one in known):
            found = Contradiction("no side file") if known[0] is None else _disagreement(known[0], manifest)
            raise Corrupt(
                "the data contradicts its side file",
                path=side_path,
                found=found and found.found,
                expected=found and found.stated,
                hint=f"Restore the data. If the change was intended: {REPLACE}",
            )
    put(store, side_path, encode_manifest(manifest))
    _drop(store, side_path + NEXT)


def _disagreement(manifest: Manifest, found: Manifest) -> Contradiction | None:
    """Return how a manifest computed from data differs from the manifest next to it."""
    if manifest.parts or found.parts:
        both = [(manifest.parts[name], one) for name, one in found.parts.items() if name in manifest.parts]
        return next((one for one in (_disagreement(*pair) for pair in both) if one is not None), None)
    facts = Facts(found.format, found.binding, found.size_bytes, found.num_samples, found.num_tokens)
    different = contradiction(manifest, facts)
    if different is not None:
        return different
    for name, digests in manifest.block_digests.items():
        known = found.block_digests.get(name, ())
        if tuple(known) != tuple(digests):
            pairs = zip(known, digests, strict=False)
            block = next((n for n, pair in enumerate(pairs) if pair[0] != pair[1]), min(len(known), len(digests)))
            return Contradiction(f"different bytes in block {block} of {name}" if known else f"no {name}")
    return None


def record_in_side_file(store: Store, side_path: str, **facts: Any) -> None:
    """Change additional records of a side file and its parts, such as `planes`.

    A missing side file isn't created. A damaged one stays unchanged, because a new `check` would hide the damage.
    """
    manifest = load_manifest(store, side_path, to_write=True)
    if manifest is None or is_damaged(store, side_path):
        return
    changed = replace(manifest, **facts, parts={name: replace(one, **facts) for name, one in manifest.parts.items()})
    if changed != manifest:
        put(store, side_path, encode_manifest(changed))


# --- sweeping ----------------------------------------------------------------------------------------------------


def sweep_next(store: Store, code: str, paths: Sequence[str], belongs: bool, *, write: bool) -> list[Action]:
    """Give the files of a writer that was killed while it replaced data their final names, or remove them.

    Args:
        store: store of the files.
        code: code of the actions.
        paths: final names of the files next to the data, the side file last.
        belongs: whether the data is the new data.
        write: apply the actions, instead of only listing them.
    """
    actions: list[Action] = []
    for path in paths:
        if store.exists(path + NEXT):
            what = "rename it to its final name, because it matches the data" if belongs else "remove it"
            actions.append(Action(code, path + NEXT, f"{what} (left by an interrupted writer)", write))
            if write and belongs:
                promote(store, path + NEXT)
            elif write:
                if store.is_local and store.exists(_hidden_path(path)) and not store.exists(path):
                    store.rename(_hidden_path(path), path)
                store.delete(path + NEXT)
    return actions


def is_next(store: Store, side_path: str, facts: Callable[[], Facts], part: str | None = None) -> bool:
    """Return whether the data matches the next side file, not the current one."""
    return _fitting(store, side_path, facts, part)[1]


def _drop(store: Store, path: str) -> None:
    if store.exists(path):
        with contextlib.suppress(NotFound):
            store.delete(path)
