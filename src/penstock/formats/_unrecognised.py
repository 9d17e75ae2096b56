"""Description of data that no format recognizes: the likeliest cause, and the command that helps."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence

from penstock.errors import PenstockError, Unsupported
from penstock.store.base import Store

Cause = tuple[str, str]
"""Kind of data found, and advice."""

LINES_OF_A_LIST = "`jq -c '.[]' IN > OUT.jsonl` turns a list into lines"

_ARRAY_BEGINS = re.compile(rb"^[\xef\xbb\xbf\s]*\[\s*(\{|\Z)")
_OBJECT_BEGINS = re.compile(rb"^[\xef\xbb\xbf\s]*\{\s*\n\s*\"")
_HEAD_BYTES = 4096
_SHOWN = 5
_LOOKED_AT = 1000
TAR_PACKERS = (".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz")
_PACKERS: Mapping[bytes, str] = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_MAGIC: Mapping[bytes, Cause] = {
    b"PAR1": ("a Parquet file that is cut off", "Copy it again. A complete file ends with PAR1"),
    b"PK\x03\x04": ("a zip archive", "Unpack it and pass the files in it"),
    b"\x89PNG": ("one picture", "Pass its folder"),
    b"\xff\xd8\xff": ("one picture", "Pass its folder"),
    b"\x93NUMPY": (
        "a NumPy array",
        "`penstock convert --tokens-column` reads arrays; format='raw-tokens' reads token ids",
    ),
}
UNKNOWN: Cause = (
    "bytes of an unknown format",
    "Specify one with format= (--format). For bare token ids: format='raw-tokens'",
)
_MARKS: Mapping[str, str] = {
    "index.json": "a dataset of shards or token files",
    ".nv-meta": "a prepared WebDataset",
    "dataset_dict.json": "a Hugging Face dataset",
    "state.json": "a Hugging Face dataset",
    ".zgroup": "a zarr group",
    "zarr.json": "a zarr group",
}
"""File of a folder → kind of the folder."""

_NOT_ONLY_NO = ("jsonl-files: JSONL files and", "token-files: token files and", "flat-tokens: a zarr")
"""Beginnings of the reasons of a format that recognized a part of the data."""

_RECIPE = re.compile(
    rb"^[\s{\"]*(penstock|path|blend|blend_epochized|concat|join|stages|kind|__class__|__module__)\"?\s*:", re.MULTILINE
)


def unrecognised(
    store: Store, path: str, reasons: Sequence[str], by_name: Sequence[str], broken: Sequence[str] = ()
) -> Unsupported:
    """Return the error for `path`, in one line; all reasons are in its note, which a traceback shows.

    Args:
        store: store of the data.
        path: path of the data.
        reasons: `"format: why not"`.
        by_name: formats whose suffix the path has.
        broken: errors of plug-ins that could not be tried.
    """
    try:
        found, hint = _of_folder(store, path) if store.is_folder(path) else _of_file(store, path)
    except (PenstockError, OSError):
        found, hint = "a folder or file that can't be read", "Specify its format with format= (--format)"
    telling = [one for one in reasons if one.startswith((*_NOT_ONLY_NO, *(f"{name}: " for name in by_name)))]
    if telling and not found.startswith(("an empty", "a tokenizer", "one JSON", "JSON objects")):
        found = telling[0].partition(": ")[2]
        hint = telling[1].partition(": ")[2] if len(telling) > 1 else hint
    hint = broken[0] if broken else hint
    error = Unsupported("no format recognizes this", path=path, found=found, hint=hint)
    error.add_note("\n".join((*reasons, *broken)))
    return error


def holds_datasets(store: Store, path: str) -> Unsupported:
    """Return the error for a folder that isn't a dataset but contains some in subfolders."""
    found, hint = _of_folder(store, path)
    return Unsupported("no format recognizes this", path=path, found=found, hint=hint)


def looks_like_recipe(head: bytes) -> bool:
    """Return whether the first bytes of a YAML or JSON file are those of a recipe or metadataset."""
    return looks_like_text(head) and _RECIPE.search(head) is not None


def looks_like_text(head: bytes) -> bool:
    """Return whether the first bytes of a file are readable text: UTF-8 without control characters."""
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # else a character is cut
            return False
        text = head[: error.start].decode()
    return bool(text) and not re.search("[\x00-\x08\x0e-\x1f]", text)


def is_tokenizer(head: bytes, path: str) -> bool:
    """Return whether a JSON document with these first bytes is a tokenizer, in one line or many."""
    return path.endswith("tokenizer.json") or (b'"added_tokens"' in head and b'"version"' in head)


def of_binary(head: bytes) -> Cause | None:
    """Return the kind of a file that is neither text nor compressed, by its first bytes; None if it may be lines."""
    for magic, cause in _MAGIC.items():
        if head.startswith(magic):
            return cause
    if head[257:262] == b"ustar":
        return "one tar", "Pass its folder, after `penstock prepare` if needed"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "text in UTF-16", "`iconv -f UTF-16 -t UTF-8 IN > OUT` converts it to UTF-8"
    # A crash may replace lines with zeros.
    return UNKNOWN if b"\0" in head and head.strip(b"\0") else None


def of_text(head: bytes, path: str) -> Cause | None:
    """Return the kind of a text file that isn't JSONL by its first bytes; None if they aren't text."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if not looks_like_text(head):
        return None
    suffix = os.path.splitext(path)[1]
    if start in (b"{", b"[") and is_tokenizer(head, path):
        return "a tokenizer, not data", "Pass it to `penstock pack` as --tokenizer"
    if start in (b"{", b"[") and _is_lines(head):
        return f"JSON objects, one per line, in a file called {suffix or path}", "Rename it to .jsonl"
    if suffix in (".json", ".yaml", ".yml") and _RECIPE.search(head):
        return "a recipe, not data", f"`penstock plan {path.rpartition('/')[2]}` shows what it reads"
    if suffix in (".yaml", ".yml"):
        return "YAML, not data", "`penstock plan FILE` shows what a recipe reads"
    if start in (b"{", b"["):
        what = "one JSON document, not one object per line"
        return what, f"{LINES_OF_A_LIST}; as text: `penstock pack --input-format text`"
    if path.lower().endswith((".csv", ".tsv")):
        return "a text table, not shards", "`penstock convert FILE OUT/ --to mds` reads a table with a header"
    return "plain text", "`penstock pack FILE --input-format text` packs it"


def of_document(head: bytes, *, one_line: bool) -> Cause | None:
    """Return what the first bytes of a file are if they begin one JSON document instead of separate lines.

    Args:
        head: bytes of a file that has a single line, or whose first line isn't valid JSON.
        one_line: the file has a single line.
    """
    first, _, rest = head.lstrip(b"\xef\xbb\xbf \t\r\n").partition(b"\n")
    if _ARRAY_BEGINS.match(head if one_line else first) and (one_line or not rest.lstrip().startswith(b"[")):
        return "one JSON array", LINES_OF_A_LIST
    if not one_line and _OBJECT_BEGINS.match(head):
        return "one JSON object over several lines", "`jq -c . IN > OUT.jsonl` puts each object on one line"
    return None


def _is_lines(head: bytes) -> bool:
    """Return whether the first line is a whole JSON object, and another one begins after it."""
    line, _, rest = head.removeprefix(b"\xef\xbb\xbf").lstrip().partition(b"\n")
    try:
        return rest.lstrip().startswith(b"{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _of_file(store: Store, path: str) -> Cause:
    head = store.get(path, 0, _HEAD_BYTES)
    if not head:
        return "an empty file", "Check whether the program that writes it has finished, or omit the file"
    for magic, name in _PACKERS.items():
        if head.startswith(magic) and path.lower().endswith((".tar", *TAR_PACKERS)):
            return f"a tar compressed with {name}", "Decompress it: shards need random access"
        if head.startswith(magic):
            what = f"{name} under a name that doesn't end in .jsonl.gz, .jsonl.zst, .ndjson.gz or .ndjson.zst"
            return what, "Rename it if its lines are JSON objects; `penstock pack FILE --input-format text` packs text"
    return of_binary(head) or of_text(head, path) or UNKNOWN


def _of_folder(store: Store, path: str) -> Cause:
    names = sorted(_below(store, path.rstrip("/") or path))
    if not names:
        return "an empty folder", "Check whether the program that writes it has finished"
    if all(name.endswith(".json") for name in names):
        return "a directory of JSON files", f"Rename them to .jsonl if each line is an object; {LINES_OF_A_LIST}"
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return f"a folder that is not a dataset, with {shown}", "Pass a dataset in it, or a pattern"


def _below(store: Store, root: str) -> Iterator[str]:
    """Yield the direct entries of a folder, with a remark on those of a known kind."""
    if not store.is_local:
        files = store.first_names(root)
        yield from {name.partition("/")[0] + ("/" if "/" in name else "") for name in files}
        return
    with os.scandir(root) as entries:
        for entry in itertools.islice(entries, _LOOKED_AT):
            if entry.name.startswith("."):
                continue
            if not entry.is_dir():
                yield entry.name
                continue
            mark = next((what for name, what in _MARKS.items() if store.exists(f"{entry.path}/{name}")), None)
            yield f"{entry.name}/" + (f" ({mark})" if mark else "")
