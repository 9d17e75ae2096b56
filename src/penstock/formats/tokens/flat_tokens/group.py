"""Content of a group: version, arrays, attribute, splits, and problems with them. No data is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import xxhash

from penstock._limits import count_in
from penstock.errors import ConfigError, Corrupt, NotFound, PenstockError, TooLarge, Unsupported
from penstock.formats._findings import Problem
from penstock.formats._folders import choose_default_split, require_default_split
from penstock.formats._manifest import file_digest
from penstock.formats.tokens.source import SideFile
from penstock.formats.tokens.zarr.meta import (
    AGAIN,
    ARRAY_FILE,
    ATTRIBUTES_FILE,
    CONSOLIDATED_FILE,
    GROUP_FILE,
    REBUILD,
    ArrayMeta,
    Json,
    fault,
    is_array,
    parse_array,
    parse_json,
)
from penstock.store.base import Store
from penstock.store.object_folder import require_finished
from penstock.store.side_file import Facts, file_binding, fitting_manifest, load_manifest
from penstock.store.zip_store import MAGIC, ZipStore
from penstock.types import Manifest

TOKENS, STARTS, LIMIT = "encoded_tokens", "seq_starts", "max_token_id"
OLD_TOKENS = "tokens"
SPLITS = ("train", "validation")
MOST_ID = (1 << 31) - 1

_MOST_META_BYTES = 1 << 26


@dataclass(slots=True)
class Group:
    """One flat-tokens array, as far as its metadata can be read.

    Attributes:
        path: folder of the group.
        zarr_format: 2 or 3.
        tokens_name: `"encoded_tokens"`, or `"tokens"` as the format's own example spells it.
        tokens: metadata of that array.
        starts: metadata of `seq_starts`.
        max_token_id: the attribute.
        metadata: content of each metadata file, by its name in the group.
        problems: problems found.
    """

    path: str
    zarr_format: int = 2
    tokens_name: str = TOKENS
    tokens: ArrayMeta | None = None
    starts: ArrayMeta | None = None
    max_token_id: int | None = None
    metadata: dict[str, bytes] = field(default_factory=dict[str, bytes])
    problems: list[Problem] = field(default_factory=list[Problem])

    def require(self) -> tuple[ArrayMeta, ArrayMeta, int]:
        """Return tokens, starts and largest id; raise the first problem that is an error."""
        for problem in self.problems:
            if problem.severity == "error":
                raise problem.error()
        if self.tokens is None or self.starts is None or self.max_token_id is None:
            raise Corrupt("the group is incomplete", path=self.path)
        return self.tokens, self.starts, self.max_token_id

    @property
    def index(self) -> bytes:
        """Concatenation of all metadata in a fixed order, the first part of a fingerprint."""
        return b"".join(f"{name}\n{len(data)}\n".encode() + data for name, data in sorted(self.metadata.items()))


def read_group(store: Store, path: str) -> Group:
    """Read the metadata of a single array group: at most five small files.

    Raises:
        NotFound: nothing is at `path`.
    """
    group = Group(path)
    zarr_format = _group_format(store, group)
    if isinstance(zarr_format, Problem):
        group.problems.append(zarr_format)
        return group
    group.zarr_format = zarr_format
    attributes = _read_attributes(store, group)
    names = [name for name in (TOKENS, OLD_TOKENS) if store.exists(f"{path}/{name}/{ARRAY_FILE[zarr_format]}")]
    has_starts = store.exists(f"{path}/{STARTS}/{ARRAY_FILE[zarr_format]}")
    if not names or (names == [OLD_TOKENS] and not has_starts):
        group.problems.append(_no_tokens(path, has_starts or LIMIT in attributes))
    else:
        group.tokens_name = names[0]
        if names[0] == OLD_TOKENS:
            group.problems.append(_old_name(path))
        group.tokens = _read_array(store, group, names[0], TOKENS, "uint32")
    if has_starts:
        group.starts = _read_array(store, group, STARTS, STARTS, "uint64")
        if group.starts is not None and group.starts.num_items == 0:
            where = f"{path}/{STARTS}/{ARRAY_FILE[zarr_format]}"
            group.problems.append(
                fault(f"{STARTS}.nonempty", Corrupt, where, "`seq_starts` is empty", REBUILD, 0, "0", "1 at least")
            )
    elif names:
        group.problems.append(fault(f"{STARTS}.present", Corrupt, path, "no `seq_starts` in the group", REBUILD))
    if names or has_starts:
        _read_limit(group, attributes)
    return group


def own_files(store: Store, path: str) -> list[str] | None:
    """Return the files of a group, or of its splits, by relative path; None if an array is missing or incomplete.

    Raises:
        NotFound: there is nothing at `path`.
    """
    if holds_array(store, path):
        group = read_group(store, path)
        if group.tokens is None or group.starts is None:
            return None  # incomplete
        arrays = [(group.tokens_name, group.tokens), (STARTS, group.starts)]
        own = [f"{array}/{name}" for array, meta in arrays for name in array_files(store, f"{path}/{array}", meta)]
        return [*own, CONSOLIDATED_FILE, ATTRIBUTES_FILE[2], *group.metadata]
    splits = [(split, own_files(store, f"{path}/{split}")) for split in splits_in(store, path)]
    own = [f"{split}/{name}" for split, names in splits for name in names or ()]
    return [*own, CONSOLIDATED_FILE, ATTRIBUTES_FILE[2], *GROUP_FILE.values()] if own else None


def array_files(store: Store, folder: str, meta: ArrayMeta) -> Iterator[str]:
    """Return the existing files of an array, by their names in its folder."""
    start = len(folder) + 1
    for path in store.list(folder):
        name = path[start:]
        number = count_in(name.removeprefix(meta.key_start), meta.num_files)
        is_chunk = number is not None and name == meta.file_name(number)
        if is_chunk or name in (*ARRAY_FILE.values(), ATTRIBUTES_FILE[2]):
            yield name


def find_group(store: Store, path: str, split: str | None) -> tuple[str, str | None]:
    """Return `(folder, split)` of the single array group that a path and a split mean.

    Raises:
        NotFound: the split doesn't exist, or `train` is to be read by default and isn't a group.
        ConfigError: the group has no splits.
    """
    if split is not None and (not split or split.startswith(".") or "/" in split or "\\" in split):
        raise ConfigError("not a valid split name", path=path, found=repr(split), expected=" or ".join(SPLITS))
    if holds_array(store, path):
        if split is not None:
            raise ConfigError(
                "the group has no splits", path=path, found=f"split={split!r}", hint="Omit --split (split=)"
            )
        return path, None
    found = splits_in(store, path)
    if split is not None:
        if split not in found and not holds_group(store, f"{path}/{split}"):
            raise NotFound("unknown split", path=path, found=split, expected=", ".join(found) or "no splits")
        return f"{path}/{split}", split
    if not found:
        return path, None
    require_default_split(store, path, found, " or ".join(GROUP_FILE.values()))
    chosen = choose_default_split(path, found)
    return f"{path}/{chosen}", chosen


def opened_zip(store: Store, path: str) -> Store:
    """Return the store of a group: of the members of a zip file if `path` is one."""
    if not path.endswith(".zip") or store.is_folder(path) or not store.exists(path):
        return store
    return ZipStore(store, path) if store.get(path, 0, len(MAGIC)) == MAGIC else store


def holds_array(store: Store, path: str) -> bool:
    """Return whether a group's own `encoded_tokens` (or `tokens`) exists."""
    names = (f"{path}/{name}/{file}" for name in (TOKENS, OLD_TOKENS) for file in ARRAY_FILE.values())
    return any(store.exists(name) for name in names)


def holds_group(store: Store, path: str) -> bool:
    """Return whether a folder may contain zarr metadata of a group."""
    return any(store.exists(f"{path}/{name}") for name in GROUP_FILE.values())


def splits_in(store: Store, path: str) -> list[str]:
    """Return the names of the splits of a dataset group."""
    return [name for name in SPLITS if holds_group(store, f"{path}/{name}")]


# --- parts -------------------------------------------------------------------------------------------------------


def _group_format(store: Store, group: Group) -> int | Problem:
    path = group.path
    what = "not a zarr group"
    if store.is_folder(path):
        for zarr_format in (3, 2):
            where = f"{path}/{GROUP_FILE[zarr_format]}"
            if store.exists(where):
                data = _read(store, where)
                found = parse_json(data, where)
                if isinstance(found, Problem):
                    return found
                if found.get("zarr_format") != zarr_format:
                    return _unfit(where, found.get("zarr_format"), f"zarr_format {zarr_format}")
                if zarr_format == 2 or found.get("node_type") == "group":
                    group.metadata[GROUP_FILE[zarr_format]] = data
                    return zarr_format
        if any(store.exists(f"{path}/{name}") for name in ARRAY_FILE.values()):
            what = "a zarr array instead of a group"
    for name in GROUP_FILE.values():
        require_finished(store, f"{path}/{name}")
    if not store.exists(path):  # asked last: web servers have no folders
        raise NotFound("no such file or folder", path=path, hint="Check the path")
    return fault("group.present", Unsupported, path, what, "Pass the path of the group", None, None, "a zarr group")


def _read_attributes(store: Store, group: Group) -> Json:
    name = ATTRIBUTES_FILE[group.zarr_format]
    where = f"{group.path}/{name}"
    if name not in group.metadata:
        if not store.exists(where):
            return {}
        group.metadata[name] = _read(store, where)
    found = parse_json(group.metadata[name], where)
    if isinstance(found, Problem):
        group.problems.append(found)
        return {}
    attributes = found.get("attributes", {}) if group.zarr_format == 3 else found
    if not isinstance(attributes, dict):
        group.problems.append(_unfit(where, attributes, "attributes as an object"))
        return {}
    return cast(Json, attributes)


def _read_array(store: Store, group: Group, name: str, label: str, wanted: str) -> ArrayMeta | None:
    file = f"{name}/{ARRAY_FILE[group.zarr_format]}"
    where = f"{group.path}/{file}"
    group.metadata[file] = _read(store, where)
    if not is_array(group.metadata[file], group.zarr_format):
        found = parse_json(group.metadata[file], where)
        no_array = fault(f"{label}.present", Corrupt, where, f"`{label}` is not an array", AGAIN)
        group.problems.append(found if isinstance(found, Problem) else no_array)
        return None
    meta = parse_array(group.metadata[file], where, group.zarr_format, label, wanted)
    if isinstance(meta, Problem):
        group.problems.append(meta)
        return None
    return meta


def _read_limit(group: Group, attributes: Json) -> None:
    where = f"{group.path}/{ATTRIBUTES_FILE[group.zarr_format]}"
    value = attributes.get(LIMIT)
    found, expected = repr(value)[:100], f"an integer from 0 to {MOST_ID}"
    if LIMIT not in attributes:
        problem = fault(
            f"{LIMIT}.present", Corrupt, where, "no attribute `max_token_id`", REBUILD, None, None, expected
        )
    elif type(value) is not int:
        problem = fault(f"{LIMIT}.integer", Corrupt, where, "`max_token_id`", REBUILD, 0, found, expected)
    elif not 0 <= value <= MOST_ID:
        problem = fault(f"{LIMIT}.range", Corrupt, where, "`max_token_id`", REBUILD, 0, found, expected)
    else:
        group.max_token_id = value
        return
    group.problems.append(problem)


def _read(store: Store, path: str) -> bytes:
    size_bytes = store.size(path)
    if size_bytes > _MOST_META_BYTES:
        raise TooLarge(
            "the metadata is too large", path=path, found=f"{size_bytes} bytes", expected=f"{_MOST_META_BYTES}"
        )
    return store.get(path)


def _no_tokens(path: str, meant: bool) -> Problem:
    kind: type[PenstockError] = Corrupt if meant else Unsupported
    what = "a zarr group, but not flat-tokens: no `encoded_tokens`"
    fix = AGAIN if meant else "Open it with zarr"
    return fault(f"{TOKENS}.present", kind, path, what, fix, None, None, "an array `encoded_tokens`")


def _old_name(path: str) -> Problem:
    return fault(
        f"{TOKENS}.name",
        Corrupt,
        f"{path}/{OLD_TOKENS}",
        "the array is called `tokens`",
        "Rename the folder to `encoded_tokens`, the name that other readers use",
        None,
        OLD_TOKENS,
        TOKENS,
        "warning",
    )


def _unfit(path: str, found: object, expected: str) -> Problem:
    return fault("metadata.parse", Corrupt, path, "the group's metadata", AGAIN, 0, repr(found)[:100], expected)


# --- side file ---------------------------------------------------------------------------------------------------


def require_outside_groups(store: Store, path: str) -> None:
    """Raise `ConfigError` for a path inside a group with tokens, because its side file would be that group's."""
    outer = path.rstrip("/").rpartition("/")[0]
    if outer and holds_group(store, outer) and holds_array(store, outer):
        raise ConfigError(
            "the output is inside a flat-tokens group", path=path, found=outer, hint="Choose another output"
        )


def side_place(store: Store, path: str) -> tuple[str, str | None]:
    """Return `(side file, part)` of a single array group: the file is next to the outermost group, never inside one."""
    folder, _, name = path.rstrip("/").rpartition("/")
    if folder and holds_group(store, folder):
        return f"{folder}.penstock", name
    return f"{path.rstrip('/')}.penstock", None


def side_part(store: Store, path: str) -> Manifest | None:
    """Return the record of a single array group in a side file, whether it still fits or not."""
    side_path, part = side_place(store, path)
    fitting = fitting_manifest(store, side_path, lambda: group_facts(store, read_group(store, path)), part)
    manifest = None if fitting is not None else load_manifest(store, side_path)
    return fitting or (manifest if manifest is None or part is None else manifest.parts.get(part))


def group_facts(store: Store, group: Group) -> Facts:
    """Return the facts of a group to compare with a side file: its metadata, and its first and last chunk.

    Raises:
        NotFound: one of the two chunks doesn't exist.
    """
    names = [] if group.tokens is None else edge_files(group.tokens)
    bindings = [file_binding(store, f"{group.path}/{group.tokens_name}/{name}") for name in names]
    num_samples = None if group.starts is None else group.starts.num_items - 1
    num_tokens = None if group.tokens is None else group.tokens.num_items
    binding = group_binding(group.index, bindings)

    def digest(name: str, place: int) -> str | None:
        arrays = {group.tokens_name: group.tokens, STARTS: group.starts}
        array = arrays.get(name)
        path = f"{group.path}/{name}" if array is None else f"{group.path}/{name}/{array.file_name(place)}"
        return file_digest(store, path) or None

    return Facts("flat-tokens", binding, num_samples=num_samples, num_tokens=num_tokens, block_digest=digest)


def group_side(store: Store, group: Group) -> SideFile:
    """Return the side file of a single array group."""
    path, part = side_place(store, group.path)
    return SideFile(path, partial(group_facts, store, group), part)


def group_binding(index: bytes, bindings: Sequence[str]) -> str:
    """Return a short digest of the metadata and of the `file_binding` of the first and the last chunk."""
    return xxhash.xxh3_128_hexdigest(index + "\n".join(bindings).encode())


def edge_files(meta: ArrayMeta) -> list[str]:
    """Return the names of the first and the last chunk of an array."""
    return [meta.file_name(number) for number in sorted({0, meta.num_files - 1}) if 0 <= number < meta.num_files]
