"""What each column of the source is, and what it becomes in the target: by name, by schema or by first samples."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.codec.fields import mds_field, text_field
from penstock.convert.forms import converter, kind_of, stored_class, suffix_of
from penstock.convert.rows import KEY, STORED
from penstock.errors import ConfigError, PenstockError, Unsupported
from penstock.types import Sample

TEXT_FORMATS = ("csv", "tsv", "xsv", "json-shards")
PART_FORMATS = ("webdataset", "folder")

_PARTS = {
    "text": "txt",
    "int": "cls",
    "float": "json",
    "bool": "json",
    "json": "json",
    "long": "json",
    "bytes": "bin",
    "array": "npy",
    "jpeg": "jpg",
    "png": "png",
    "pickle": "pkl",
    "time": "txt",
    "decimal": "txt",
}
"""Kind → the extension of its part."""

_MDS = {
    "text": "str",
    "int": "int",
    "float": "float64",
    "bool": "json",
    "json": "json",
    "bytes": "bytes",
    "jpeg": "jpeg",
    "png": "png",
    "pickle": "pkl",
    "time": "str",
    "decimal": "str_decimal",
}
"""Kind → its MDS encoding."""

_TEXTS = {"text": "str", "int": "int", "long": "int", "float": "float", "time": "str", "decimal": "str"}
_JSON_KINDS = frozenset(("text", "int", "float", "bool", "json"))
_INT64 = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True)
class Found:
    """One column of the source.

    Attributes:
        name: in a row.
        form: of its values; see `forms`.
        kind: `text int float bool json bytes array jpeg png pickle time decimal`, or `opaque`.
        dtype: of numbers and arrays, where all agree.
        missing: some sample lacks it, or holds null.
        scalar: what its JSON is, where that is `text`, `int` or `float` alone.
    """

    name: str
    form: str
    kind: str
    dtype: str | None = None
    missing: bool = False
    scalar: str | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """One column on its way.

    Attributes:
        source: its name in a row of the source.
        name: in a row of the target.
        read: form of the source's values.
        write: form of the target's.
        missing: what a row without it gets: `"error"`, `"null"` or `"nothing"`.
    """

    source: str
    name: str
    read: str
    write: str
    missing: str = "error"


# --- the source ----------------------------------------------------------------------------------------------------


def find_columns(format: str, encodings: Mapping[str, str], samples: Sequence[Sample]) -> list[Found]:
    """The columns of a source.

    Args:
        format: of the source.
        encodings: of its columns, where its index tells them.
        samples: its first rows.
    """
    names = list(encodings) or list(dict.fromkeys(name for sample in samples for name in sample))
    return [_found(format, name, encodings.get(name), [sample.get(name) for sample in samples]) for name in names]


def _found(format: str, name: str, encoding: str | None, values: list[Any]) -> Found:
    missing = any(value is None for value in values)
    if name == KEY:
        return Found(name, "mds:str" if format == "mds" else "value", "text")
    if format == "mds":
        form = f"mds:{encoding}"
        codec = mds_field(encoding or "")
        dtype = codec.dtype if codec.kind in ("ndarray", "int", "float") else None
        return Found(name, form, kind_of(form), dtype, scalar=_scalar(form, values))
    if format in STORED:
        form = f"part:{name}"
        return Found(name, form, kind_of(form), None, missing, _scalar(form, values))
    if encoding is not None:
        return Found(name, "value", {"str": "text"}.get(encoding, encoding))
    known = [value for value in values if value is not None]
    if known and all(_is_file(value) for value in known):
        return Found(name, "file", _file_kind(known[0]["bytes"]), None, missing)
    kinds = dict.fromkeys(_kind(value) for value in known)
    kind = next(iter(kinds)) if len(kinds) == 1 else "json" if kinds.keys() <= _JSON_KINDS else "mixed"
    if kind == "int" and not all(int(value) in _INT64 for value in known):
        kind = "long"
    return Found(name, "value", kind, _dtype(kind, known), missing)


def _scalar(form: str, values: list[Any]) -> str | None:
    """The one kind of the values in a column of JSON, where text formats can hold it."""
    way = converter(form, "json") if stored_class(form) == "json" else None
    if way is None:
        return None
    try:
        kinds = {_kind(way(value)) for value in values if value is not None}
    except PenstockError:
        return None  # whoever converts that sample says what is wrong
    return kinds.pop() if len(kinds) == 1 and kinds <= {"text", "int", "float"} else None


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return "array"
    if isinstance(value, bool | np.bool_):
        return "bool"
    if isinstance(value, datetime.date | datetime.time):
        return "time"
    kinds: tuple[tuple[str, tuple[type, ...]], ...] = (
        ("text", (str,)),
        ("int", (int, np.integer)),
        ("float", (float, np.floating)),
        ("bytes", (bytes, bytearray, memoryview)),
        ("decimal", (decimal.Decimal,)),
        ("json", (dict, list, tuple)),
    )
    return next((kind for kind, types in kinds if isinstance(value, types)), "opaque")


def _dtype(kind: str, values: list[Any]) -> str | None:
    dtypes = {value.dtype.name for value in values if isinstance(value, np.ndarray | np.generic)}
    whole = kind in ("array", "int", "float") and all(isinstance(one, np.ndarray | np.generic) for one in values)
    return dtypes.pop() if whole and len(dtypes) == 1 else None


def _is_file(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"bytes", "path"} and isinstance(value["bytes"], bytes)  # pyright: ignore


def _file_kind(data: bytes) -> str:
    if data.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    return "png" if data.startswith(b"\x89PNG\r\n\x1a\n") else "bytes"


# --- the target ----------------------------------------------------------------------------------------------------


def choose_columns(
    to: str, found: Sequence[Found], wanted: Mapping[str, str] | None, path: str
) -> tuple[list[Column], list[str]]:
    """The columns of the target, and what gets lost.

    Args:
        to: format of the target.
        found: columns of the source.
        wanted: name → encoding (for tars and folders: the part), instead of what follows from the source.
        path: of the source, for errors.

    Raises:
        Unsupported: the target can't hold a column.
        ConfigError: `wanted` names a column that is not there, or an encoding that does not fit.
    """
    lost: list[str] = []
    if wanted is not None:
        names = {one.name: one for one in found}
        for name in wanted:
            if name not in names:
                raise ConfigError(f"no column {name!r}", path=path, expected=", ".join(names))
        lost = [f"column {one.name!r}" for one in found if one.name not in wanted and one.name != KEY]
        key = [one for one in found if one.name == KEY and to in PART_FORMATS and KEY not in wanted]
        found = [*key, *(names[name] for name in wanted)]
    columns: list[Column] = []
    for one in found:
        column = _column(to, one, (wanted or {}).get(one.name), path)
        if column.missing == "null":
            lost.append(f"difference between null and nothing in {one.name!r}")
        if one.kind == "time" or (one.kind == "decimal" and to != "mds"):
            lost.append(f"type of {one.name!r}, which becomes text")
        columns.append(column)
    names = [one.name for one in columns]
    if len(set(names)) != len(names):
        columns = [Column(one.source, one.source, one.read, one.write, one.missing) for one in columns]
    if not [one for one in columns if one.name != KEY or to not in PART_FORMATS]:
        raise Unsupported("no column to write", path=path)
    return columns, lost


def _column(to: str, one: Found, wanted: str | None, path: str) -> Column:
    name, write = one.name, ""
    missing = "error"
    if one.name == KEY and to in PART_FORMATS:
        return Column(KEY, KEY, one.form, "json")
    if to in PART_FORMATS:
        name = wanted if wanted else part_name(_name_of(one), one.kind)
        write, missing = f"part:{name}", "nothing"
        refused = one.kind in ("mixed", "opaque")
    elif to not in ("mds", *TEXT_FORMATS):  # JSONL, and formats of plug-ins
        name, write, missing = _name_of(one), "json", "nothing"
        refused = one.kind not in (*_JSON_KINDS, "long", "array", "time", "decimal")
    elif to == "mds":
        name = _name_of(one)
        encoding = wanted or _mds_encoding(one)
        write = f"mds:{encoding}"
        missing = "null" if one.missing and encoding == "json" else "error"
        refused = not encoding or (one.missing and encoding != "json")
    else:
        name = _name_of(one)
        encoding = wanted or _TEXTS.get(one.scalar or one.kind, "")
        write = f"text:{encoding}"
        refused = not encoding or one.missing
    if wanted:
        _require_encoding(to, name, wanted, path)
    if refused or converter(one.form, write) is None:
        raise _cannot(to, one, path)
    return Column(one.name, name, one.form, write, missing)


def part_name(name: str, kind: str) -> str:
    """The part that a column becomes: its name, with an extension where it has none that says what it is."""
    suffix = _PARTS.get(kind, "bin")
    own = stored_class(f"part:{name}")
    if own == stored_class(f"part:{suffix}") and (own != "bytes" or "." in name or name == "bin"):
        return name
    return f"{name}.{suffix}"


def _name_of(one: Found) -> str:
    """The column that a part becomes: without the extension that it would get again."""
    if not one.form.startswith("part:"):
        return one.name
    bare = one.name.rpartition(".")[0]
    return bare if bare and part_name(bare, one.kind) == one.name else one.name


def _mds_encoding(one: Found) -> str:
    if one.form.startswith("mds:"):
        return one.form.removeprefix("mds:")
    if one.missing:
        return "json" if one.kind in _JSON_KINDS or one.kind == "long" else ""
    if one.kind == "long":
        return "str_int"
    if one.kind == "array":
        return f"ndarray:{one.dtype}" if one.dtype else "ndarray"
    if one.form.startswith("part:") and one.kind == "int":
        return "str_int"
    if one.kind in ("int", "float") and one.dtype is not None:
        return one.dtype
    return _MDS.get(one.kind, "")


def _require_encoding(to: str, name: str, wanted: str, path: str) -> None:
    try:
        if to == "mds":
            mds_field(wanted)
        elif to in TEXT_FORMATS:
            text_field(wanted)
        elif to in PART_FORMATS and (not suffix_of(wanted) or "/" in wanted):
            raise ConfigError("no name for a part", found=repr(wanted), expected="such as txt, jpg, label.cls")
    except PenstockError as error:
        error.what = f"column {name!r}: {error.what}"
        error.path = path
        raise


def _cannot(to: str, one: Found, path: str) -> Unsupported:
    what = f"{to} can't hold the column {one.name!r}"
    found = f"{one.kind} values" + (", some of them missing or null" if one.missing else "")
    hint = "Leave it out, or name its encoding: --columns NAME=ENCODING,… (columns=)"
    return Unsupported(what, path=path, found=found, hint=hint)
