"""The files of `.nv-meta`: the shards, their numbers of samples, and their splits.

| file | content |
|---|---|
| `.info.json` | `{"energon_version": …, "shard_counts": {"<shard>": <samples>, …}}`, indented, no final line end |
| `.info.yaml` | the same, as written by Energon up to 6.x; `.info.json` takes precedence |
| `split.yaml`, `split.json` | `split_parts`: split → shards; `exclude`: shards, and samples as `<shard>/<key>` |
| `dataset.yaml` | the type of the samples |
| `index.sqlite`, `index.uuid` | see `sqlite_index` |

Names in `split.yaml` may have braces. The order of `shard_counts` numbers the shards: the `tar_file_id` of
`index.sqlite` is a position in it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from penstock._limits import MOST_NAME_BYTES
from penstock.codec import energon_yaml
from penstock.errors import ConfigError, Corrupt, FormatError, NotFound, PenstockError, UnsafeData, Unsupported
from penstock.formats._folders import choose_default_split
from penstock.formats.samples.webdataset.braces import Budget, collapse, expand
from penstock.store.base import Store
from penstock.store.fingerprint import OpenedFile, opened_file
from penstock.store.object_folder import require_finished
from penstock.store.put import read_document

FOLDER = ".nv-meta"
INFO_JSON, INFO_YAML = ".info.json", ".info.yaml"
SPLIT_YAML, SPLIT_JSON = "split.yaml", "split.json"
DATASET_YAML = "dataset.yaml"
SQLITE, UUID = "index.sqlite", "index.uuid"
MEMBERS = "index.members"
DONE = ".info.json.penstock"
"""File of Penstock, left by workers that replaced old metadata for late workers of the same job."""
ENERGON_VERSION = "7.4.1"
"""Version of Energon that defines the format of the files."""

SHARD_SUFFIXES = (".tar", ".tgz")
_MOST_BYTES = 1 << 28
_MOST_SAMPLES = 1 << 48
_MOST_LISTED = 1000
"""Number of files of a folder examined in the search for shards."""
_AGAIN = "Run `penstock prepare` again"


@dataclass(frozen=True, slots=True)
class Info:
    """Shards of a dataset.

    Attributes:
        counts: shard, relative to the dataset's folder → number of its samples; in the order of shard numbers.
        version: version of Energon that wrote the file, if recorded.
        name: name of the file.
        file: the local file and its state before it was read.
    """

    counts: dict[str, int]
    version: str | None
    name: str
    file: OpenedFile | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Splits:
    """Splits of a dataset.

    Attributes:
        parts: split → its list, with braces not expanded.
        exclude: list of excluded shards and samples.
        name: name of the file; None if there is none.
    """

    parts: dict[str, list[str]]
    exclude: list[str] = field(default_factory=list[str])
    name: str | None = None


def prepare_command(root: str, option: str) -> str:
    """Return the command that prepares the dataset at `root` again, in backquotes, for hints."""
    return f"`penstock prepare {root} {option}`"


def root_of(path: str) -> str:
    """Return the dataset's folder for the path of one of its files of metadata; see `meta_path`."""
    return path.rpartition(f"/{FOLDER}/")[0]


def meta_path(root: str, name: str) -> str:
    return f"{root.rstrip('/')}/{FOLDER}/{name}"


def read_info(store: Store, root: str) -> Info:
    """Return the shards of the dataset in the folder `root`.

    Raises:
        NotFound: the dataset was never prepared.
        FormatError: the file is invalid.
    """
    for name in (INFO_JSON, INFO_YAML):
        path = meta_path(root, name)
        if store.exists(path):
            file = opened_file(store, path)
            return replace(_as_info(document(store, path), name, path), file=file)
    raise unprepared(store, root)


def read_splits(store: Store, root: str, names: Sequence[str] = (SPLIT_YAML, SPLIT_JSON)) -> Splits:
    """Return the splits in the first of the files that exists; empty if no file does.

    Raises:
        FormatError: the file is invalid.
    """
    for name in names:
        path = meta_path(root, name)
        if store.exists(path):
            return _as_splits(document(store, path), name, path)
    return Splits({})


def named_splits(store: Store, root: str, name: str) -> Splits:
    """Return the splits of a file of `.nv-meta` that replaces `split.yaml`.

    Raises:
        NotFound: the file doesn't exist.
        ConfigError: it defines no splits.
    """
    path = meta_path(root, name)
    if not store.exists(path):
        raise NotFound("the split file doesn't exist", path=path, hint="It must be in .nv-meta")
    splits = read_splits(store, root, (name,))
    if not splits.parts:
        raise ConfigError("the file defines no splits", path=path)
    return splits


def split_shards(info: Info, splits: Splits, split: str, root: str) -> tuple[list[str], dict[str, list[str]]]:
    """Return the shards of a split in order, and for each shard the keys of excluded samples.

    Raises:
        ConfigError: the split doesn't exist.
        Corrupt: it lists a shard that doesn't exist.
        FormatError: braces can't be expanded.
    """
    path = meta_path(root, splits.name or SPLIT_YAML)
    if split not in splits.parts:
        raise ConfigError("unknown split", path=path, found=repr(split), expected=", ".join(splits.parts) or "none")
    budget = Budget()
    shards = [name for text in splits.parts[split] for name in expand(text, path, budget=budget)]
    out: set[str] = set()
    keys: dict[str, list[str]] = {}
    for text in splits.exclude:
        for name in expand(text, path, budget=budget):
            if name in info.counts:
                out.add(name)
            elif (found := _excluded_sample(name, info)) is not None:
                keys.setdefault(found[0], []).append(found[1])
    unknown = next((name for name in shards if name not in info.counts), None)
    if unknown is not None:
        raise Corrupt(
            f"the split {split!r} lists a shard that isn't in the dataset", path=path, found=unknown,
            expected=f"one of {info.name}", hint="Fix the list, or prepare the dataset again",
        )  # fmt: skip
    return [name for name in shards if name not in out], keys


def unmatched_shards(splits: Splits, info: Info, root: str) -> list[str]:
    """Return the entries of `exclude` that name neither a shard nor a sample in one, after braces are expanded."""
    path, budget = meta_path(root, splits.name or SPLIT_YAML), Budget()
    names = (name for text in splits.exclude for name in expand(text, path, budget=budget))
    return [name for name in names if name not in info.counts and _excluded_sample(name, info) is None]


def unmatched_text(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return f"`exclude` matches neither a shard nor <shard>/<key>: {', '.join(names[:3])}{more}"


def _excluded_sample(name: str, info: Info) -> tuple[str, str] | None:
    place = name.find("/")
    while place >= 0:
        if name[:place] in info.counts:
            return name[:place], name[place + 1 :]
        place = name.find("/", place + 1)
    return None


def choose_split(splits: Splits, split: str | None, root: str) -> str | None:
    """Return the split to open: the requested one, else the only one, else `train`; None if there are no splits.

    Raises:
        ConfigError: there are several splits and none was requested.
    """
    if split is not None:
        return split
    if not splits.parts:
        return None
    filled = [name for name, patterns in splits.parts.items() if patterns]
    return choose_default_split(root, filled if len(splits.parts) > 1 and "train" in filled else list(splits.parts))


# --- writing -----------------------------------------------------------------------------------------------------


def encode_info(counts: Mapping[str, int], version: str | None = ENERGON_VERSION) -> bytes:
    head = {} if version is None else {"energon_version": version}
    return json.dumps({**head, "shard_counts": dict(counts)}, indent=2).encode()


def encode_info_yaml(counts: Mapping[str, int], version: str | None = None) -> bytes:
    head = {} if version is None else {"energon_version": version}
    return energon_yaml.dump({**head, "shard_counts": dict(counts)}, sort_keys=True).encode()


def encode_splits(parts: Mapping[str, Sequence[str]], exclude: Sequence[str] = (), name: str = SPLIT_YAML) -> bytes:
    value = {"split_parts": {split: collapse(shards) for split, shards in parts.items()}, "exclude": list(exclude)}
    return (json.dumps(value, indent=2) if name.endswith(".json") else energon_yaml.dump(value)).encode()


# --- reading -----------------------------------------------------------------------------------------------------


def unprepared(store: Store, root: str) -> FormatError | NotFound:
    if not store.exists(root):
        return NotFound("no such file or folder", path=root, hint="Check the path")
    if not store.is_folder(root):
        hint = "Pass the directory of prepared tar shards"
        return NotFound("not a directory of tar shards", path=root, found="a file", hint=hint)
    require_finished(store, meta_path(root, INFO_JSON))
    if store.exists(meta_path(root, SQLITE)):
        return Unsupported(
            "`.nv-meta` has a media index but no list of shards: a folder of files, or an unfinished preparation",
            path=root,
            hint='Open it with format="folder". If it has tar shards, run `penstock prepare`',
        )
    with contextlib.suppress(PenstockError, OSError):
        names = list(itertools.islice(store.list(root), _MOST_LISTED))
        if len(names) < _MOST_LISTED and not any(".tar" in name.lower() or name.endswith(".tgz") for name in names):
            return NotFound("no tar shards in this folder", path=root, hint="Pass a directory of tar shards")
    return Unsupported(
        "this folder isn't prepared", path=root, found=f"no {FOLDER}/{INFO_JSON} and no {INFO_YAML}",
        hint=f"Run: penstock prepare {root}",
    )  # fmt: skip


def read_uuid(store: Store, root: str) -> str:
    return store.get(meta_path(root, UUID), 0, 64).decode(errors="replace").strip()


def document(store: Store, path: str) -> Any:
    """Return the content of a file of `.nv-meta` as plain data.

    Raises:
        FormatError: the file isn't YAML or JSON, according to its name.
    """
    data = read_document(store, path, _MOST_BYTES)
    if not path.endswith(".json"):
        return energon_yaml.load(data, path)
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError("not valid JSON", path=path, found=str(error), hint=_AGAIN) from None


def _as_info(value: Any, name: str, path: str) -> Info:
    counts = value.get("shard_counts") if isinstance(value, dict) else None
    if not isinstance(counts, dict):
        raise FormatError("the file has no `shard_counts`", path=path, hint=_AGAIN)
    for shard, count in counts.items():
        if type(count) is not int or not 0 <= count < _MOST_SAMPLES:
            raise Corrupt(
                f"invalid sample count for the shard {shard!r}", path=path, found=repr(count)[:80], hint=_AGAIN
            )
        if not shard.endswith(SHARD_SUFFIXES):
            raise Unsupported(
                "`.nv-meta` describes files that aren't tar shards", path=path, found=shard[:200],
                expected=" or ".join(SHARD_SUFFIXES), hint="Only WebDatasets of tar files are supported",
            )  # fmt: skip
        _require_inside(shard, path)
    version = value.get("energon_version")
    return Info(counts, version if isinstance(version, str) else None, name)


def _require_inside(shard: str, path: str) -> None:
    if shard.startswith("/") or ".." in shard.split("/") or "\0" in shard:
        raise UnsafeData("a shard name points outside the dataset", path=path, found=shard[:200])
    try:
        longest = max(len(os.fsencode(piece)) for piece in shard.split("/"))
    except UnicodeEncodeError:
        longest = MOST_NAME_BYTES + 1
    if longest > MOST_NAME_BYTES:
        raise Corrupt("a shard name is not a valid file name", path=path, found=repr(shard[:200]))


def _as_splits(value: Any, name: str, path: str) -> Splits:
    value = {} if value is None else value
    if not isinstance(value, dict):
        raise FormatError("the file has no mapping of splits", path=path, found=type(value).__name__)
    parts, exclude = value.get("split_parts") or {}, value.get("exclude") or []
    if not isinstance(parts, dict):
        raise FormatError("`split_parts` is not a mapping", path=path, found=type(parts).__name__)
    found = {split: _names(names, f"split {split!r}", path) for split, names in parts.items()}
    return Splits(found, _names(exclude, "`exclude`", path), name)


def _names(value: Any, what: str, path: str) -> list[str]:
    value = [] if value is None else value
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise FormatError(f"the list of {what} is not a list of names", path=path, found=repr(value)[:80])
    return value
