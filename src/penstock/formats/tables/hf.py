"""hf: a dataset of Hugging Face `datasets` saved on disk (`save_to_disk`), or one Arrow file. Read-only.

| file | content |
|---|---|
| `dataset_dict.json` | `{"splits": […]}`: each is a folder with the other files; only if there are splits |
| `state.json` | `_data_files`: names of the Arrow files, in order; `_fingerprint` |
| `dataset_info.json` | features and other metadata |
| `*.arrow` | Arrow's stream format (or its file format): a schema, then record batches, uncompressed |

A single Arrow file is a dataset too: `*.arrow`, `*.feather`, `*.ipc`, or any file that begins with `ARROW1`.

A record batch is decoded as a whole. Images and audio keep their stored form: `{"bytes": …, "path": …}`.

Limits: those of pyarrow; no dictionary-encoded columns. Checked against datasets 5.0.1.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import msgspec

from penstock._optional import require
from penstock.errors import ConfigError, Corrupt, Denied, FormatError, NotFound, Truncated, UnsafeData, Unsupported
from penstock.formats._findings import find_unlisted
from penstock.formats._folders import DEFAULT_SPLIT, choose_default_split, lacks_default_split
from penstock.formats._registry import refuse_to_create, repair_nothing
from penstock.formats.tables.arrow import (
    EXTRA,
    ArrowSource,
    arrow_faults,
    block_starts,
    damaged,
    open_file,
    require_same_schema,
)
from penstock.formats.tables.check import check_blocks
from penstock.store.base import Store
from penstock.types import Depth, Extent, Finding, IntArray, OpenOptions, Sniff, Traits

STATE = "state.json"
INFO = "dataset_info.json"
SPLITS = "dataset_dict.json"
_FILE_MAGIC = b"ARROW1"
_STREAM_MAGIC = b"\xff\xff\xff\xff"
_SUFFIXES = (".arrow", ".feather", ".ipc")
_END = b"\xff\xff\xff\xff\0\0\0\0"
_MOST_JSON_BYTES = 1 << 26
_DATA_FILE = re.compile(r"data-\d+-of-\d+\.arrow")
_AGAIN = "Copy the dataset again"


@dataclass(frozen=True, slots=True)
class HfBlocks:
    """Record batches; see `_arrow.Blocks`.

    Attributes:
        store: the store of the files.
        mapped: files are memory-mapped.
        schema: schema of the first file.
        others: path → schema, of files that differ from it in columns that aren't read.
        batches: file, offset and size of each record batch; its number in Arrow's file format, else -1.
    """

    store: Store
    mapped: bool
    schema: Any
    starts: IntArray
    batches: tuple[tuple[str, int, int], ...]
    others: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def read(self, block: int, columns: list[str] | None, /) -> Any:
        """Return a record batch over the mapping, after checking that no offset leads out of its bytes."""
        pyarrow = require("pyarrow", extra=EXTRA)
        path, start, size_bytes = self.batches[block]
        with arrow_faults(path, start):
            file = open_file(self.store, path, mapped=self.mapped)
            if size_bytes < 0:
                batch = pyarrow.ipc.open_file(file).get_batch(start)
            else:
                file.seek(start)
                batch = pyarrow.ipc.read_record_batch(
                    pyarrow.ipc.read_message(file), self.others.get(path, self.schema)
                )
            batch = batch if columns is None else batch.select(columns)
            batch.validate(full=True)
            return pyarrow.Table.from_batches([batch])

    def pieces(self, block: int, columns: list[str] | None, /) -> Iterator[Any]:
        yield self.read(block, columns)

    def extent(self, block: int, /) -> Extent:
        path, start, size_bytes = self.batches[block]
        return Extent(path, start, size_bytes) if size_bytes >= 0 else Extent(path, 0, self.store.size(path))


def open_hf(store: Store, path: str, options: OpenOptions) -> ArrowSource:
    """Open the rows of a saved dataset, of one split of a saved DatasetDict, or of one Arrow file.

    Raises:
        NotFound: the path or the split doesn't exist.
        ConfigError: there are several splits and none was selected.
        FormatError: `state.json` is damaged.
        MissingExtra: pyarrow is not installed.
    """
    root = path.rstrip("/") or path
    if is_arrow_file(store, root):
        if options.split is not None:
            raise ConfigError(
                "a single file has no splits",
                path=root,
                found=f"split={options.split!r}",
                hint="Omit --split (split=)",
            )
        files = [root]
    else:
        files = _files_of(store, split_folder(store, root, options.split))
    mapped = options.read != "pread"
    again = (open_hf, (store, path, options))
    load = partial(load_blocks, store, files, mapped, options.columns)
    return ArrowSource(store, root, "hf", files, options, load, again)


def is_arrow_file(store: Store, path: str) -> bool:
    """Return true if a file begins like an Arrow file. Streams have a weak magic, so they also need a known suffix."""
    try:
        head = store.get(path, 0, 8)
    except (NotFound, Denied):
        return False
    return head.startswith(_FILE_MAGIC) or (head.startswith(_STREAM_MAGIC) and path.endswith(_SUFFIXES))


def split_folder(store: Store, root: str, split: str | None) -> str:
    """Return the folder of a split: by default the only split or `train`; `root` if there are no splits."""
    if store.exists(f"{root}/{STATE}"):
        if split is not None:
            raise ConfigError(
                "the dataset has no splits", path=root, found=f"split={split!r}", hint="Omit --split (split=)"
            )
        return root
    if not store.exists(f"{root}/{SPLITS}"):
        raise NotFound("not a dataset saved by Hugging Face datasets", path=root, expected=f"{STATE} or {SPLITS}")
    found = _splits(store, root)
    if split is not None:
        if split not in found:
            unlisted = store.exists(f"{root}/{split}/{STATE}")
            hint = f"{SPLITS} doesn't list it: add it to the list, or open {root}/{split}" if unlisted else None
            raise NotFound("unknown split", path=root, found=split, expected=", ".join(found), hint=hint)
        return f"{root}/{split}"
    _require_listed(store, root, found, "choose another split with --split (split=): {}")
    return f"{root}/{choose_default_split(root, found)}"


def saved_files(store: Store, path: str) -> list[str]:
    """Return the paths of the Arrow files of a saved dataset or its only split, in order.

    Raises:
        ConfigError: the dataset has several splits.
        FormatError: `state.json` is damaged.
    """
    root = path.rstrip("/") or path
    splits = _splits(store, root) if store.exists(f"{root}/{SPLITS}") else [""]
    if splits != [""]:
        _require_listed(store, root, splits, f"open the folder of another split: {root}/{{}}")
    if len(splits) != 1:
        hint = f"Open the folder of one split, such as {root}/{splits[0]}" if splits else "Save it again"
        raise ConfigError("each split is a separate dataset", path=root, found=", ".join(splits) or "none", hint=hint)
    return _files_of(store, f"{root}/{splits[0]}".rstrip("/"))


def _require_listed(store: Store, root: str, names: Sequence[str], instead: str) -> None:
    """Raise `NotFound` if the list of splits omits the folder of the default split."""
    if lacks_default_split(store, root, names):
        what, shown = f"the split {DEFAULT_SPLIT} isn't listed in {SPLITS}", ", ".join(names)
        hint = f"Add it to the list, or {instead.format(shown)}"
        raise NotFound(what, path=f"{root}/{DEFAULT_SPLIT}", found=f"a list of {shown}", hint=hint)


def _splits(store: Store, root: str) -> list[str]:
    path = f"{root}/{SPLITS}"
    found: Any = _json(store, path).get("splits")
    if not isinstance(found, list) or not all(isinstance(one, str) for one in cast(list[Any], found)):
        raise Corrupt("the list of splits is damaged", path=path, found=repr(found)[:80])
    names = cast(list[str], found)
    for one in names:
        _require_inside(one, path)
    return names


def _files_of(store: Store, folder: str) -> list[str]:
    path = f"{folder}/{STATE}"
    state = _json(store, path)
    if state.get("_indices_data_files"):
        hint = "Save it again with a newer version of datasets, which writes the rows in order"
        raise Unsupported("its rows are selected by an indices file", path=path, hint=hint)
    listed = state.get("_data_files")
    entries: list[Any] = cast(list[Any], listed) if isinstance(listed, list) else [None]
    names = [cast(dict[str, Any], one).get("filename") if isinstance(one, dict) else None for one in entries]
    if not all(isinstance(one, str) and one for one in names):
        raise Corrupt("the list of data files is damaged", path=path, found=repr(listed)[:80])
    for one in names:
        _require_inside(str(one), path)
    return [f"{folder}/{one}" for one in names]


def _require_inside(name: str, path: str) -> None:
    if name.startswith("/") or ".." in name.split("/") or "\0" in name or not name:
        raise UnsafeData("a file name points outside the dataset", path=path, found=repr(name[:200]))


def _json(store: Store, path: str) -> dict[str, Any]:
    size_bytes = store.size(path)
    if size_bytes > _MOST_JSON_BYTES:
        raise Corrupt("the file is too large", path=path, found=f"{size_bytes} bytes")
    try:
        found = msgspec.json.decode(store.get(path))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Corrupt("not JSON", path=path, found=str(error)) from None
    if not isinstance(found, dict):
        raise Corrupt("not a JSON object", path=path, found=type(found).__name__)
    return found


# --- record batches ------------------------------------------------------------------------------------------------


def load_blocks(store: Store, files: Sequence[str], mapped: bool, columns: Sequence[str] | None = None) -> HfBlocks:
    """Find the record batches of Arrow files by reading only the message headers.

    Files may differ in columns that aren't among `columns`.

    Raises:
        FormatError: a file is damaged, or has another schema than the first.
    """
    pyarrow = require("pyarrow", extra=EXTRA)
    schema: Any = None
    others: dict[str, Any] = {}
    batches: list[tuple[str, int, int]] = []
    counts: list[int] = []
    for path in files:
        with arrow_faults(path):
            file = open_file(store, path, mapped=mapped)
            is_file = file.read(len(_FILE_MAGIC)) == _FILE_MAGIC
            file.seek(0)
            here = pyarrow.ipc.open_file(file).schema if is_file else _stream_schema(file, path)
            if schema is None:
                schema = here.remove_metadata()
            here = here.remove_metadata()
            require_same_schema(here, schema, path, columns)
            others |= {} if here.equals(schema) else {path: here}
            for count, start, size_bytes in _file_batches(file) if is_file else _stream_batches(file, here, path):
                if count:
                    counts.append(count)
                    batches.append((path, start, size_bytes))
    starts = block_starts(counts, files[0] if files else "")
    return HfBlocks(store, mapped, pyarrow.schema([]) if schema is None else schema, starts, tuple(batches), others)


def _unlisted_splits(store: Store, root: str, names: Sequence[str]) -> list[Finding]:
    """Return a finding if the list of splits omits a folder: an error for the default split, else a warning."""
    if store.is_local:
        with os.scandir(root) as entries:
            folders = sorted(one.name for one in entries if one.is_dir() and one.name not in names)
    else:
        folders = [DEFAULT_SPLIT] if lacks_default_split(store, root, names) else []
    fix = f"Add the split to {SPLITS}, or remove the folder"
    return [
        Finding("hf.unlisted", "error" if name == DEFAULT_SPLIT else "warning", f"{root}/{name}", None,
                f"a split that {SPLITS} omits", None, fix)
        for name in folders
        if store.exists(f"{root}/{name}/{STATE}")
    ]  # fmt: skip


def _check_features(store: Store, folder: str, source: ArrowSource) -> list[Finding]:
    """Return a finding if the columns differ from the features in `dataset_info.json`, if recorded."""
    path = f"{folder}/{INFO}"
    try:
        features = _json(store, path).get("features")
    except NotFound:
        return []
    except FormatError as error:
        return [Finding("hf.damaged", "error", path, None, str(error.found or error.what), None, _AGAIN)]
    columns = {one.name for one in source.arrow_schema}
    if not isinstance(features, dict) or not columns or columns == set(cast(dict[str, Any], features)):
        return []
    saved = ", ".join(sorted(cast(dict[str, Any], features)))
    return [Finding("hf.features", "error", path, None, f"the features {saved}", ", ".join(sorted(columns)), _AGAIN)]


def _stream_schema(file: Any, path: str) -> Any:
    pyarrow = require("pyarrow", extra=EXTRA)
    schema = pyarrow.ipc.read_schema(file)
    for one in schema:
        if pyarrow.types.is_dictionary(one.type):
            raise Unsupported(f"the column {one.name!r} is dictionary-encoded", path=path, found=str(one.type))
    return schema


def _file_batches(file: Any) -> Iterator[tuple[int, int, int]]:
    opened = require("pyarrow", extra=EXTRA).ipc.open_file(file)
    for number in range(opened.num_record_batches):
        yield opened.get_batch(number).num_rows, number, -1


def _stream_batches(file: Any, schema: Any, path: str) -> Iterator[tuple[int, int, int]]:
    ipc = require("pyarrow", extra=EXTRA).ipc
    size_bytes = file.size()
    while (start := file.tell()) < size_bytes:
        try:
            message = ipc.read_message(file)
        except EOFError:
            file.seek(start)
            if file.read(len(_END)) != _END:
                raise Truncated("the file ends in the middle of a message", path=path, offset_bytes=start) from None
            if file.tell() != size_bytes:
                raise Corrupt("bytes after the end", path=path, offset_bytes=file.tell()) from None
            return
        if message.type != "record batch":
            what = "unsupported message in the Arrow stream"
            raise Unsupported(what, path=path, offset_bytes=start, found=message.type, expected="record batch")
        try:
            rows = ipc.read_record_batch(message, schema).num_rows
        except (ValueError, OSError) as error:
            raise damaged(path, error, start) from error
        yield rows, start, file.tell() - start
    raise Truncated("the file has no end-of-stream mark", path=path, offset_bytes=size_bytes)


class _Hf:
    name = "hf"
    traits = Traits(splits=True, remote=True, verify=True, suffixes=_SUFFIXES, made_by="Hugging Face datasets")

    def sniff(self, store: Store, path: str, /) -> Sniff:
        """Recognize the files of `save_to_disk`, or the first bytes of an Arrow file."""
        root = path.rstrip("/") or path
        if is_arrow_file(store, root):
            return Sniff(True, "it begins like an Arrow file")
        if store.exists(f"{root}/{SPLITS}"):
            return Sniff(True, f"it has {SPLITS}")
        if store.exists(f"{root}/{STATE}") and store.exists(f"{root}/{INFO}"):
            return Sniff(True, f"it has {STATE} and {INFO}")
        return Sniff(False, f"no {SPLITS}, and not both {STATE} and {INFO}")

    open = staticmethod(open_hf)
    create = refuse_to_create

    def check(self, store: Store, path: str, options: OpenOptions, depth: Depth, /) -> list[Finding]:
        root = path.rstrip("/") or path
        if options.split is None and not store.exists(f"{root}/{STATE}") and store.exists(f"{root}/{SPLITS}"):
            try:
                splits = _splits(store, root)
            except FormatError as error:
                where = str(error.path or path)
                return [Finding(f"{self.name}.damaged", "error", where, None, str(error.found or error.what))]
            found = [one for name in splits for one in self._check_split(store, f"{root}/{name}", options, depth)]
            return found + _unlisted_splits(store, root, splits)
        return self._check(store, path, options, depth)

    def _check_split(self, store: Store, path: str, options: OpenOptions, depth: Depth) -> list[Finding]:
        try:
            return self._check(store, path, options, depth)
        except NotFound as error:
            return [Finding(f"{self.name}.missing-split", "error", path, None, error.what, SPLITS, _AGAIN)]

    def _check(self, store: Store, path: str, options: OpenOptions, depth: Depth) -> list[Finding]:
        try:
            source = open_hf(store, path, options)
        except (FormatError, UnsafeData) as error:
            where = str(error.path or path)
            return [Finding(f"{self.name}.damaged", "error", where, None, str(error.found or error.what))]
        found = check_blocks(source, self.name, depth)
        if source.files[1] == (source.path,):
            return found
        folder = split_folder(store, path.rstrip("/") or path, options.split)
        found += [] if found else _check_features(store, folder, source)
        return found + find_unlisted(store, folder, _files_of(store, folder), _DATA_FILE, "hf.unlisted")

    repair = repair_nothing


FORMAT = _Hf()
