"""Exclude list of a dataset: how it is found and matched with the data it names."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from penstock._access import capability
from penstock.abc import Format, Source, SupportsKeys
from penstock.errors import ConfigError, Corrupt, NotFound, PrepareError
from penstock.formats._exclusions import Exclusions, exclusions, nothing_excluded
from penstock.store.base import Store
from penstock.store.exclude_list import (
    BESIDE,
    NO_LIST,
    NOT_SHOWN,
    OURS,
    SUFFIX,
    WAITING,
    Entry,
    ExcludeList,
    encode_list,
    linked_file,
    list_above,
    list_beside,
    read_list,
    with_lists,
    with_side_files,
)
from penstock.store.place import Place, place_of
from penstock.store.put import put
from penstock.store.side_file import load_manifest, record_in_side_file
from penstock.types import IntArray, Manifest, OpenOptions

TOKEN_FILE = re.compile(r"part-\d{5,}-[0-9a-f]+\.")
"""Beginning of the names of the files in a folder of token files."""


@runtime_checkable
class _KnowsSide(Protocol):
    """Format with its own rule for the path of side files."""

    def side_of(self, store: Store, path: str, options: OpenOptions, /) -> str: ...


@runtime_checkable
class _HasManifest(Protocol):
    @property
    def manifest(self) -> Manifest | None: ...


class _HasFiles(Protocol):
    """Joined text of several files; see `formats.jsonl.text`."""

    base: Store
    files: tuple[str, ...]

    def path_at(self, start: int) -> tuple[str, int]: ...


def exclusions_of(chosen: Format, store: Store, path: str, options: OpenOptions, source: Source[Any]) -> Any:
    """Return the `Exclusions` of an opened dataset; None without an exclude list.

    On this machine, the list is looked up next to the data and in each folder above. For remote data, only a named list
    is read.

    Raises:
        NotFound: a named list doesn't exist.
        Corrupt: a list can't be read, or belongs to other data.
        ConfigError: a part of a dataset with a list is opened by itself, or a part of the data has a list.
    """
    if options.excludes is False:
        return nothing_excluded()
    if isinstance(options.excludes, ExcludeList) and not options.excludes.entries:
        return None
    files = _several(source)
    if options.excludes is None and store.is_local:
        own = None if files else place_of_list(chosen, store, path, options, source)[0]
        members = _members(source, path) if files is None else files.files
        _require_no_member_list(store, path, members if files is None else ())
        require_no_list_above(members, own)
    if files is not None and options.excludes is None:
        return _of_several(options, source)
    listed, split = _find(chosen, store, path, options, source)
    if not listed.entries:
        return None
    whole = as_listed(chosen, store, path, options)
    entries = {one.index: one for one in listed.of(split)}
    _require_same(listed, entries.values(), whole, len(source))
    if split is not None and isinstance(source, SupportsKeys):
        entries = dict(_of_other_splits(source, listed, split)) | entries
    return exclusions(entries, listed, options) if entries else None


def require_no_list_above(paths: Collection[str], own: str | None = None, *, known: Collection[str] = ()) -> None:
    """Reject parts of a dataset that has one exclude list, because readers of a part would ignore it.

    Args:
        paths: files and folders of this machine that are opened.
        own: the list with which they are opened.
        known: those of them that a listing showed not to be links.

    Raises:
        ConfigError: a folder above has another list.
    """
    listed = list_above(paths, own, known)
    if listed is not None:
        what = "this is part of a dataset that has an exclude list"
        raise ConfigError(
            what, path=min(paths), found=listed, hint=f"Open the whole dataset: {os.path.dirname(listed)}"
        )


def require_whole(chosen: Format, store: Store, path: str, options: OpenOptions, source: Source[Any]) -> None:
    """Raise `ConfigError` for a list of a part of one dataset, because readers of the whole would ignore it."""
    folder, _, last = path.rstrip("/").rpartition("/")
    if TOKEN_FILE.match(last) and store.exists(f"{folder or '.'}/index.json"):
        what = "this is one file of a dataset, which has one exclude list"
        raise ConfigError(what, path=path, hint=f"Exclude samples of the whole dataset: {folder or '.'}")
    if store.is_local and _several(source) is None:
        members = _members(source, path)
        _require_no_member_list(store, path, members)
        require_no_list_above(members, place_of_list(chosen, store, path, options, source)[0])


def _members(source: Any, path: str) -> Sequence[str]:
    """Return the files of a dataset; its path if it is one file, or if its index lists the files."""
    listed = capability(source, "listed")
    return (capability(source, "_files") if listed is None else listed.paths) or (path,)


def require_list_named(chosen: Format, store: Store, path: str, options: OpenOptions, source: Source[Any]) -> None:
    """Reject remote data with an unnamed exclude list next to it, before the data is copied.

    This takes one request, or one listing per folder of JSONL files. Commands that only read don't check.

    Raises:
        ConfigError: there is such a list.
    """
    if options.excludes is not None or store.is_local:
        return
    several, found = _several(source), ""
    with contextlib.suppress(*NOT_SHOWN):
        if several is not None:
            found = min(with_lists(several.base, several.files).values(), default="")
        else:
            listed = place_of_list(chosen, store, path, options, source)[0]
            found = listed if store.exists(listed) else ""
    if found:
        what = "there is an exclude list next to this remote dataset"
        raise ConfigError(what, path=path, found=found, hint="Specify it: --excludes URL (excludes=)")


def _require_no_member_list(store: Store, path: str, files: Sequence[str]) -> None:
    """Reject several files if one of them has a list of its own, by one listing per folder."""
    if len(files) < 2:
        return
    for listed in sorted(with_lists(store, files).values()):
        what = "one of the files has an exclude list of its own"
        raise ConfigError(
            what, path=path, found=listed, hint="Exclude samples of the whole dataset, and remove this list"
        )


def place_of_list(
    chosen: Format, store: Store, path: str, options: OpenOptions, source: Source[Any]
) -> tuple[str, str | None]:
    """Return the path of the exclude list of a dataset, and the split that its entries name."""
    side, split = _side(chosen, store, path, options, source)
    return list_beside(store, side), split


def require_no_exclusions(store: Store, path: str) -> None:
    """Raise `ConfigError` for a WebDataset with an exclude list that is opened with splits unknown to the list."""
    listed = f"{path.rstrip('/')}/{OURS[0]}"
    manifest = load_side_file_of_list(store, listed)
    recorded = manifest is not None and manifest.has_exclude_list
    if recorded or (store.is_local and store.exists(listed)):
        what = "this dataset has an exclude list whose entries refer to the splits of split.yaml"
        raise ConfigError(what, path=path, found=listed, hint="Open it without split_config, or run `penstock purge`")


def _side(chosen: Format, store: Store, path: str, options: OpenOptions, source: Any) -> tuple[str, str | None]:
    name, bare = chosen.name, path.rstrip("/") or path
    if isinstance(chosen, _KnowsSide):
        return chosen.side_of(store, path, options), None
    if name == "webdataset":
        return f"{source.path}/.penstock", source.split
    if name == "flat-tokens":
        folder, _, last = bare.rpartition("/")
        outer = folder and any(store.exists(f"{folder}/{one}") for one in (".zgroup", "zarr.json"))
        return (f"{folder}.penstock", last) if outer else (f"{bare}.penstock", source.split)
    if name == "megatron":
        return f"{bare.removesuffix('.idx').removesuffix('.bin')}.idx.penstock", None
    if name == "hf" and store.is_folder(path) and not store.exists(f"{bare}/state.json"):
        return f"{bare}/.penstock", options.split or "train"
    if name == "jsonl":
        return f"{source.text[1] if hasattr(source, 'text') else source.path}.penstock", None
    return (f"{bare}/.penstock" if store.is_folder(path) else f"{bare}.penstock"), None


def _find(
    chosen: Format, store: Store, path: str, options: OpenOptions, source: Source[Any]
) -> tuple[ExcludeList, str | None]:
    """Return the exclude list, which may be empty, and the open split."""
    given = options.excludes
    if isinstance(given, ExcludeList):
        return given, _side(chosen, store, path, options, source)[1]
    if given is not None:
        place = place_of(given)
        return read_list(place.store, place.path), _side(chosen, store, path, options, source)[1]
    if not store.is_local:
        _require_not_recorded_far_away(chosen, store, path, options, source)
        return NO_LIST, None
    list_path, split = place_of_list(chosen, store, path, options, source)
    if store.exists(list_path):
        return read_list(store, list_path), split
    data = list_path.removesuffix(OURS[0])
    _require_none_waits(store, (data.removesuffix("/") or data) + WAITING)
    _require_not_recorded(store, list_path, source)
    return NO_LIST, None


def _require_not_recorded(store: Store, list_path: str, source: Any) -> None:
    """Raise `Corrupt` if the side file of data without an exclude list records one."""
    known = isinstance(source, _HasManifest)
    require_list_not_recorded(list_path, source.manifest if known else load_side_file_of_list(store, list_path))


def _require_not_recorded_far_away(
    chosen: Format, store: Store, path: str, options: OpenOptions, source: Source[Any]
) -> None:
    """Do the same for remote data, next to which lists are not looked for, without further requests.

    Formats that are only read have no side file that could record a list.
    """
    if isinstance(source, _HasManifest):
        require_list_not_recorded(f"{path.rstrip('/')}{BESIDE}", source.manifest)
    elif chosen.traits.write:
        list_path = place_of_list(chosen, store, path, options, source)[0]
        require_list_not_recorded(list_path, load_side_file_of_list(store, list_path))


def load_side_file_of_list(store: Store, list_path: str) -> Manifest | None:
    """Return the manifest of the data next to which an exclude list would be."""
    return load_manifest(store, list_path.removesuffix(SUFFIX))


def require_lists_not_recorded(store: Store, paths: Collection[str], known: Collection[str] = ()) -> None:
    """Raise `Corrupt` if one of these files, which have no exclude list next to them, should have one."""
    for path in with_side_files(store, paths, known):
        require_list_not_recorded(f"{path}{BESIDE}", load_side_file_of_list(store, f"{path}{BESIDE}"))


def require_list_not_recorded(list_path: str, manifest: Manifest | None) -> None:
    """Raise `Corrupt` if a side file records an exclude list that is missing at `list_path`."""
    if manifest is not None and manifest.has_exclude_list:
        what = "the exclude list recorded in the side file is missing"
        hint = (
            "Restore it, or specify it with excludes= (--excludes). To read the excluded samples too, pass "
            "excludes=False (--excludes none)"
        )
        raise Corrupt(what, path=list_path, hint=hint)


# --- lists that are copied with data ---------------------------------------------------------------------------------


def waiting_list(name: str, path: str) -> str:
    """Return the path at which the list of data of the format `name` waits until the data is visible."""
    bare = path.rstrip("/") or path
    return (f"{bare.removesuffix('.idx').removesuffix('.bin')}.idx" if name == "megatron" else bare) + WAITING


def put_waiting(chosen: Format, place: Place, entries: Sequence[Entry]) -> None:
    """Write the list of data that is about to become visible; until `settle_waiting`, the data can't be opened."""
    if entries:
        path = waiting_list(chosen.name, place.path)
        put(place.store, path, encode_list([replace(one, dataset="", split=None) for one in entries], path))


def settle_waiting(chosen: Format, place: Place, split: str | None = None) -> None:
    """Bind the waiting list to the data that is now visible, and move it next to the data."""
    store, path = place.store, waiting_list(chosen.name, place.path)
    if not store.exists(path):
        return
    options = OpenOptions(excludes=NO_LIST, split=split)
    whole = as_listed(chosen, store, place.path, options)
    list_path, split = place_of_list(chosen, store, place.path, options, whole)
    entries = [replace(one, dataset=whole.fingerprint, split=split) for one in read_list(store, path).entries]
    put(store, list_path, encode_list(entries, list_path))
    record_list(Place(store, list_path), exists=True)
    store.delete(path)


def record_list(place: Place, *, exists: bool) -> None:
    """Record in the side file of the data next to a list whether it exists, so that a copy without it is noticed."""
    if place.path.endswith(SUFFIX):
        record_in_side_file(place.store, place.path.removesuffix(SUFFIX), has_exclude_list=exists)


def unsettle(chosen: Format, place: Place) -> None:
    """Make the list of data wait again, because the data is about to be replaced."""
    options = OpenOptions(excludes=NO_LIST)
    path, _ = place_of_list(
        chosen, place.store, place.path, options, as_listed(chosen, place.store, place.path, options)
    )
    if place.store.exists(path):
        put_waiting(chosen, place, read_list(place.store, path).entries)
        place.store.delete(path)


def _require_none_waits(store: Store, path: str) -> None:
    if store.exists(path):
        what = "excluded samples were copied here, but their exclude list is missing"
        hint = "Re-run the command that copied them to finish it. If the data was replaced since, remove that file"
        raise PrepareError(what, path=path.removesuffix(WAITING), found=path, hint=hint)


def as_listed(chosen: Format, store: Store, path: str, options: OpenOptions) -> Source[Any]:
    """Open a dataset with the sample numbers that exclude lists use: as stored, without options."""
    plain = replace(options, columns=None, raw=True, vocab_size=None, validate_hash=None, image=None, excludes=None)
    flavor = "modalities" if chosen.name.startswith("jsonl") else options.flavor
    real = linked_file(store, path)
    if real is not None:  # files next to the data are already known there
        store, path = real.store, real.path
    return chosen.open(store, path, replace(plain, flavor=flavor, mask_tokens=None))


def _require_same(listed: ExcludeList, entries: Any, whole: Source[Any], samples: int) -> None:
    found = sorted({one.dataset for one in entries})
    if not found:
        return
    again = "Restore the data, or remove the list and create it again with `penstock exclude`"
    if found != [whole.fingerprint]:
        what = "the exclude list belongs to different data"
        raise Corrupt(what, path=listed.path, found=", ".join(found), expected=whole.fingerprint, hint=again)
    beyond = [one.index for one in entries if one.index >= len(whole)]
    if beyond or len(whole) != samples:
        what = "the exclude list doesn't match the data with these options"
        raise Corrupt(what, path=listed.path, found=f"{samples} samples", expected=f"{len(whole)}", hint=again)


def _of_other_splits(source: SupportsKeys, listed: ExcludeList, split: str) -> Iterator[tuple[int, Entry]]:
    """Yield samples that are listed in another split and are in this one too."""
    for one in listed.entries:
        if one.split not in (None, split) and one.key is not None:
            try:
                yield source.index_of(one.key), one
            except NotFound:
                continue


# --- several files -------------------------------------------------------------------------------------------------


def _several(source: Any) -> _HasFiles | None:
    """Return the files that contain the lines of a source, if there may be several."""
    text = getattr(source, "text", None)
    return text[0] if text is not None and hasattr(text[0], "path_at") else None


def _of_several(options: OpenOptions, source: Any) -> Exclusions | None:
    """Return the exclusions of several files, each with its own list next to it."""
    text = source.text[0]
    if text.base.is_local:
        require_lists_not_recorded(text.base, {*text.files} - {*list_paths(source).values()})
    listed = lists_of_files(source)
    return exclusions({one.index: one for one in listed.entries}, listed, options) if listed.entries else None


def list_paths(source: Any) -> dict[str, str]:
    text = _several(source)
    found = with_lists(text.base, text.files) if text is not None and text.base.is_local else {}
    return {listed: path for path, listed in sorted(found.items())}


def lists_of_files(source: Any) -> ExcludeList:
    """Merge the lists of JSONL files that are one source into one list of that source; raise `Corrupt` as for each."""
    lists = list_paths(source)
    if not lists:
        return NO_LIST
    text, read = source.text[0], list[Entry]()
    firsts = {path: first for path, first, _ in files_of_lines(source)}
    for list_path, path in lists.items():
        listed = read_list(text.base, list_path)
        whole = _alone(source, text, path)
        _require_same(listed, listed.entries, whole, len(whole))
        # As entries of the whole, so that workers can be given one list.
        known = {"dataset": source.fingerprint, "split": None}
        read += [replace(one, index=one.index + firsts[path], **known) for one in listed.entries]
    return ExcludeList(tuple(read), min(lists))


def files_of_lines(source: Any) -> list[tuple[str, int, int]]:
    """Return path, first line and end line of each of several JSONL files that are one source."""
    text = _several(source)
    if text is None:
        return []
    lines = source.line_ranges()
    firsts = _first_lines(text, lines)
    stops = [*firsts.values(), len(lines)][1:]
    return [(path, first, stop) for (path, first), stop in zip(firsts.items(), stops, strict=True)]


def _alone(source: Any, text: Any, path: str) -> Source[Any]:
    is_plain = path.endswith((".jsonl", ".ndjson"))
    return type(source)(text.base if is_plain else type(text)(text.base, path, [path]), path, OpenOptions())


def _first_lines(text: _HasFiles, lines: IntArray) -> dict[str, int]:
    """Return file → number of its first line among all; by bisection, as lines are in the order of their files."""
    firsts: dict[str, int] = {}
    order = {path: place for place, path in enumerate(text.files)}
    for path, place in order.items():
        low, high = 0, len(lines)
        while low < high:
            middle = (low + high) // 2
            if order[text.path_at(int(lines[middle, 0]))[0]] < place:
                low = middle + 1
            else:
                high = middle
        firsts[path] = low
    return firsts
