"""jsonl-files: several JSONL files, optionally compressed, as one dataset. Read-only.

A folder, searched recursively for `.jsonl` and `.ndjson`, also with `.gz` or `.zst`; a pattern such as
`raw/*.jsonl.zst`; or a list. Lines are those of all files in the byte order of their paths. Hidden files are skipped.

Nothing is written next to the files. Without indexes, files are scanned once per host and the result is cached. See
`text` for how compressed files are read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from penstock.errors import ConfigError, NotFound, Unsupported
from penstock.formats._folders import other_data
from penstock.formats._manifest import side_path
from penstock.formats._registry import refuse_to_create, repair_nothing
from penstock.formats.jsonl.build import index_path_for
from penstock.formats.jsonl.check import NO_INDEX, check_jsonl
from penstock.formats.jsonl.source import JsonlSource, open_text
from penstock.formats.jsonl.text import COMPRESSED, Text, compression_of
from penstock.store.base import Store
from penstock.store.find import files_of_all, find_files, one_store, survey
from penstock.store.names import NEXT
from penstock.store.patterns import alternatives, is_pattern
from penstock.store.place import absolute, place_of
from penstock.store.put import NamesBeside, read_small
from penstock.types import Depth, Finding, OpenOptions, Sniff, Traits

NAME = "jsonl-files"
_PLAIN = (".jsonl", ".ndjson")
SUFFIXES = (*_PLAIN, *(plain + suffix for plain in _PLAIN for suffix in COMPRESSED))


def open_several(store: Store, given: str | Sequence[str], options: OpenOptions) -> JsonlSource:
    """Open the lines of all files of a folder, a pattern or a list. Files are listed but not opened.

    Raises:
        NotFound: the path doesn't exist or has no JSONL files.
        ConfigError: a file is listed twice.
        UnsafeData: a link leads out of a searched folder.
    """
    one = given if isinstance(given, str) else None
    paths = [given] if isinstance(given, str) else given
    files = files_of_all(paths, SUFFIXES, "JSONL", follow_links=options.follow_links)
    survey(store, files)
    root = one.rstrip("/") if one is not None else os.path.commonpath([absolute(path) for path in files])
    return open_text(Text(store, root, files), given, options)


class _JsonlFiles:
    name = NAME
    instead = "Write one JSONL file (format jsonl), or shards (json-shards)"
    traits = Traits(remote=True, verify=True, made_by="Folders and patterns of JSONL files")

    def sniff(self, store: Store, path: str, /) -> Sniff:
        """Recognize a folder or pattern that has JSONL files and no other data."""
        if not store.is_folder(path) and not (is_pattern(path) and not store.exists(path)):
            return Sniff(False, "neither a folder nor a pattern")
        try:
            files = list(_files(path, follow_links=True))
        except (NotFound, ConfigError, Unsupported):
            return Sniff(False, "no JSONL files found in it")
        if not all(file.endswith(SUFFIXES) for file in files):
            return Sniff(False, "not all of the files are JSONL")
        is_one = len(alternatives(path)) == 1 and store.is_folder(path)
        names = (file[len(path.rstrip("/")) + 1 :] for file in store.list(path)) if is_one else ()
        other = other_data(names, SUFFIXES)
        if other is not None:
            ends = sorted({end for file in files for end in SUFFIXES if file.endswith(end)})
            pattern = f"{path.rstrip('/')}/**/*{ends[0] if len(ends) == 1 else '{' + ','.join(ends) + '}'}"
            return Sniff(False, f"JSONL files and other data ({other}). Use a pattern: '{pattern}'")
        return Sniff(True, f"{len(files)} JSONL files")

    def open(self, store: Store, path: str, options: OpenOptions, /) -> JsonlSource:
        return open_several(store, path, options)

    def open_list(self, paths: Sequence[str], options: OpenOptions, /) -> JsonlSource:
        """Open the lines of several files, folders and patterns; raise `ConfigError` if their stores differ."""
        # Named paths are deliberate, even links; only the search of folders rejects links that lead out.
        return open_several(one_store(paths), [place_of(path).path for path in paths], options)

    create = refuse_to_create

    def check(self, store: Store, path: str, options: OpenOptions, depth: Depth, /) -> list[Finding]:
        files = sorted(_files(path, follow_links=options.follow_links), key=os.fsencode)
        names = NamesBeside(files, (".idx", ".penstock", NEXT))
        found = (one for file in files for one in check_jsonl(_seen(store, file, names), file, options, depth))
        return [finding for finding in found if finding.code != NO_INDEX]  # an index isn't needed

    repair = repair_nothing


def _seen(store: Store, path: str, names: NamesBeside) -> Store:
    """Return a store for checking one of several files: in memory, with its index and side file, if all are small."""
    if not store.is_local or compression_of(path) is not None:
        return store
    index, side = index_path_for(path), side_path(path)
    beside = filter(names.has, (index, index + NEXT, side, side + NEXT))
    return read_small(store, path, *beside)


def _files(path: str, *, follow_links: bool) -> list[str]:
    return list(find_files(path, [SUFFIXES], "JSONL", follow_links=follow_links))


FORMAT = _JsonlFiles()
