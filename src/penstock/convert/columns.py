"""Choose the columns of the target by the names, the schema or the first samples of the source, and make its rows."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from penstock.codec.fields import mds_field, split_list, text_field
from penstock.codec.parts import AV_SUFFIXES, IMAGE_SUFFIXES
from penstock.convert.rows import KEY, STORED
from penstock.convert.values import (
    Convert,
    converter,
    first_number,
    is_media,
    is_media_list,
    kind_of,
    media_list,
    media_part,
    media_parts,
    media_suffix,
    numbered_images,
    numbered_values,
    stem_of_numbered,
    stored_class,
    suffix_of,
)
from penstock.errors import ConfigError, PenstockError, Unsupported
from penstock.types import Sample

TEXT_FORMATS = ("csv", "tsv", "xsv", "json-shards")
PART_FORMATS = ("webdataset", "folder")
GROUPED = ("mds", *TEXT_FORMATS)
"""Formats whose shards are written by many processes."""


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
"""Kind → extension of its part."""

_BYTES_PARTS = AV_SUFFIXES | {"m4a", "m4v", "aac", "ogg", "opus", "bin", "npz", "pth", "ten", "tb", "mp", "msg", "cbor"}
"""Names of bytes columns that are the extension of their part."""

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
_TYPES: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("text", (str,)),
    ("int", (int, np.integer)),
    ("float", (float, np.floating)),
    ("bytes", (bytes, bytearray, memoryview)),
    ("decimal", (decimal.Decimal,)),
    ("json", (dict, list, tuple)),
)
Missing = Literal["error", "skip", "null"]
"""What to do with samples that lack a column that the target requires."""

MISSING: tuple[Missing, ...] = get_args(Missing)
_NULL = b"null"
_OTHER_PART = "Choose another part for one of them with --columns NAME=PART,… (columns=)"
_MEDIA = ("jpeg", "png", "bytes")
_OPENED = frozenset(("jpg", "png", "webp", "gif", "bmp", "tif"))
"""Images that readers of MDS open, whatever their encoding is called."""
_LISTS = ("list[jpeg]", "list[png]")
_LIST_FORMS = ("files", *(f"mds:{encoding}" for encoding in _LISTS))
_JSON_KINDS = frozenset(("text", "int", "float", "bool", "json"))
_INT64 = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column of the source.

    Attributes:
        name: its name in rows.
        form: form of its values; see `values`.
        kind: `text int float bool json bytes array jpeg png pickle time decimal`, `images` for lists of image files, or
            `opaque`.
        dtype: dtype of numbers and arrays, if all agree.
        missing: whether some sample lacks it or has null.
        scalar: kind of its JSON values if all are `text`, `int` or `float`.
        first_gap: first sample that lacks it.
        by_content: its values are media files, some of which are recognized by content.
        first_number: lowest number of the numbered parts that it consists of; None for other columns.
    """

    name: str
    form: str
    kind: str
    dtype: str | None = None
    missing: bool = False
    scalar: str | None = None
    first_gap: int | None = None
    by_content: bool = False
    first_number: int | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the target.

    Attributes:
        source: its name in rows of the source.
        name: its name in rows of the target.
        read: form of the source's values.
        write: form of the target's values.
        convert: converts a value.
        missing: value of rows that lack it: `"error"`, `"null"` or `"nothing"`.
        spreads: `convert` returns several parts by name.
        first_number: the value is a list of numbered parts from this number on; None for other columns.
    """

    source: str
    name: str
    read: str
    write: str
    convert: Convert
    missing: str = "error"
    spreads: bool = False
    first_number: int | None = None

    def value_in(self, sample: Sample) -> Any:
        """Return its value in a row of the source, or None."""
        if self.first_number is None:
            return sample.get(self.source)
        return numbered_values(self.source, self.first_number, sample)

    def is_in(self, sample: Sample) -> bool:
        """Return whether a row of the source has it; a list of numbered parts may be empty."""
        return self.first_number is not None or sample.get(self.source) is not None


def choose_columns(
    to: str,
    format: str,
    encodings: Mapping[str, str],
    samples: Sequence[Sample],
    selection: Mapping[str, str] | Sequence[str] | None,
    shown: str,
    missing: Missing = "error",
) -> tuple[list[Column], list[str]]:
    """Choose the columns of the target; return them, and properties of the source that get lost.

    Args:
        to: format of the target.
        format: format of the source.
        encodings: encodings of the source's columns, if its index records them.
        samples: its first rows.
        selection: name → encoding (for tars and folders: the part), or names; None for all columns.
        shown: name of the source in errors.
        missing: what to do with samples that lack a column.

    Raises:
        Unsupported: the target can't store a column.
        ConfigError: `selection` names a missing column or an unsuitable encoding.
    """
    every = list(encodings) or list(dict.fromkeys(name for sample in samples for name in sample))
    numbered = numbered_images(every) if to == "mds" and format in STORED and format != "mds" else {}
    if selection is not None:
        numbered = {stem: parts for stem, parts in numbered.items() if stem in selection}
    parts = {part for of_stem in numbered.values() for part in of_stem}
    found = [
        _describe(format, name, encodings.get(name), [sample.get(name) for sample in samples])
        for name in every
        if name not in parts
    ]
    for stem, names in numbered.items():
        values = [sample[name] for sample in samples for name in names if sample.get(name) is not None]
        found.append(SourceColumn(stem, "numbered", "images", _image_kind(values), first_number=first_number(names)))
    if missing == "skip":
        found = [replace(one, missing=False) for one in found]
    found, wanted, lost = _select(to, found, selection, shown)
    columns: list[Column] = []
    for one in found:
        column = _column(to, one, wanted.get(one.name), shown)
        if column.missing == "null":
            lost.append(f"difference between null and missing in {one.name!r}")
        if one.kind == "time" or (one.kind == "decimal" and to != "mds"):
            lost.append(f"type of {one.name!r}, which becomes text")
        columns.append(column)
    names = [one.name for one in columns]
    if len(set(names)) != len(names) and to not in PART_FORMATS:
        columns = [replace(one, name=one.source) for one in columns]
    _require_distinct(columns, shown)
    if not [one for one in columns if one.name != KEY or to not in PART_FORMATS]:
        raise Unsupported("no column to write", path=shown)
    return columns, lost


# --- the source ----------------------------------------------------------------------------------------------------


def _describe(format: str, name: str, encoding: str | None, values: list[Any]) -> SourceColumn:
    gap = next((number for number, value in enumerate(values) if value is None), None)
    found = _describe_values(format, name, encoding, values, missing=gap is not None)
    return found if gap is None else replace(found, first_gap=gap)


def _describe_values(format: str, name: str, encoding: str | None, values: list[Any], *, missing: bool) -> SourceColumn:
    if name == KEY:
        return SourceColumn(name, "mds:str" if format == "mds" else "value", "text")
    if format == "mds":
        form = f"mds:{encoding}"
        codec = mds_field(encoding or "")
        dtype = codec.dtype if codec.kind in ("ndarray", "int", "float") else None
        if encoding in _LISTS:
            return SourceColumn(name, form, "images")
        by_content = kind_of(form) in _MEDIA and any(map(is_media, values))
        return SourceColumn(name, form, kind_of(form), dtype, scalar=_scalar(form, values), by_content=by_content)
    if format in STORED:
        form = f"part:{name}"
        return SourceColumn(name, form, kind_of(form), None, missing, _scalar(form, values))
    if encoding is not None:
        return SourceColumn(name, "value", {"str": "text"}.get(encoding, encoding))
    known = [value for value in values if value is not None]
    if known and all(_is_file(value) for value in known):
        kind = _media_kind([value["bytes"] for value in known])
        return SourceColumn(name, "file", kind, None, missing, by_content=True)
    if known and all(map(is_media_list, known)) and any(map(len, known)):
        values = media_list([file for value in known for file in value])
        return SourceColumn(name, "files", "images", _image_kind(values), missing)
    kinds = dict.fromkeys(_kind(value) for value in known)
    kind = next(iter(kinds)) if len(kinds) == 1 else "json" if kinds.keys() <= _JSON_KINDS else "mixed"
    if kind == "int" and not all(int(value) in _INT64 for value in known):
        kind = "long"
    by_content = kind == "bytes" and any(map(is_media, known))
    return SourceColumn(name, "value", kind, _dtype(kind, known), missing, by_content=by_content)


def _scalar(form: str, values: list[Any]) -> str | None:
    """Return the kind of all values in a JSON column, if text formats can store it."""
    convert = converter(form, "json") if stored_class(form) == "json" else None
    if convert is None:
        return None
    try:
        kinds = {_kind(convert(value)) for value in values if value is not None}
    except PenstockError:
        return None  # the conversion of that sample raises the error
    return kinds.pop() if len(kinds) == 1 and kinds <= {"text", "int", "float"} else None


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return "array"
    if isinstance(value, bool | np.bool_):
        return "bool"
    if isinstance(value, datetime.date | datetime.time):
        return "time"
    return next((kind for kind, types in _TYPES if isinstance(value, types)), "opaque")


def _dtype(kind: str, values: list[Any]) -> str | None:
    dtypes = {value.dtype.name for value in values if isinstance(value, np.ndarray | np.generic)}
    whole = kind in ("array", "int", "float") and all(isinstance(one, np.ndarray | np.generic) for one in values)
    return dtypes.pop() if whole and len(dtypes) == 1 else None


def _is_file(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"bytes", "path"} and isinstance(value["bytes"], bytes)  # pyright: ignore


def _media_kind(files: Sequence[bytes]) -> str:
    """Return `"png"` or `"jpeg"` if readers of MDS open all files as images, else `"bytes"`."""
    suffixes = [media_suffix(data) for data in files]
    if not set(suffixes) <= _OPENED or not {"jpg", "png"} & set(suffixes):
        return "bytes"
    return _image_kind(files)


def _image_kind(files: Sequence[bytes]) -> str:
    """Return the MDS encoding of images; readers open each by its content, whatever the encoding is called."""
    return "png" if files and all(media_suffix(data) == "png" for data in files) else "jpeg"


# --- the target ----------------------------------------------------------------------------------------------------


def _select(
    to: str, found: Sequence[SourceColumn], selection: Mapping[str, str] | Sequence[str] | None, shown: str
) -> tuple[Sequence[SourceColumn], dict[str, str], list[str]]:
    """Return the selected columns, their encodings if given, and the names of columns that get lost."""
    if selection is None:
        return found, {}, []
    if not isinstance(selection, Mapping):
        chosen = {str(name) for name in selection}
        missing = sorted(chosen - {one.name for one in found})
        if missing:
            raise ConfigError(f"no column {missing[0]!r}", path=shown)
        return [one for one in found if one.name in chosen], {}, []
    wanted = {str(name): str(one) for name, one in selection.items()}
    names = {one.name: one for one in found}
    for name in wanted:
        if name not in names:
            raise ConfigError(f"no column {name!r}", path=shown, expected=", ".join(names))
    lost = [f"column {one.name!r}" for one in found if one.name not in wanted and one.name != KEY]
    key = [one for one in found if one.name == KEY and to in PART_FORMATS and KEY not in wanted]
    return [*key, *(names[name] for name in wanted)], wanted, lost


def _column(to: str, one: SourceColumn, wanted: str | None, shown: str) -> Column:
    name, write = one.name, ""
    missing = "error"
    if one.kind == "images" and to in ("mds", *PART_FORMATS):
        return _column_of_images(to, one, wanted, shown)
    if to in PART_FORMATS and one.by_content and wanted is None:
        convert = media_part(_stem_of(one))
        return Column(one.name, _stem_of(one), one.form, "media", convert, "nothing", spreads=True)
    if one.name == KEY and to in PART_FORMATS:
        write, wanted, refused = "json", None, False
    elif to in PART_FORMATS:
        name = wanted or (one.name if one.form.startswith("part:") else part_name(one.name, one.kind))
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
        _require_encoding(to, name, wanted, shown)
    convert = None if refused else converter(one.form, write)
    if convert is None:
        what, found = f"{to} can't hold the column {one.name!r}", f"{one.kind} values"
        more = f", some of them missing or null, first in sample {one.first_gap}" if one.missing else ""
        hint = "Omit it, or specify its encoding: --columns NAME=ENCODING,… (columns=)"
        if one.missing and to not in PART_FORMATS:
            hint = f"Skip these samples with --missing skip (missing=), or omit the column {one.name!r} (--columns)"
        raise Unsupported(what, path=shown, found=found + more, hint=hint)
    return Column(one.name, name, one.form, write, convert, missing)


def _column_of_images(to: str, one: SourceColumn, wanted: str | None, shown: str) -> Column:
    """Return the column of a list of images per sample: numbered parts, or one value of MDS."""
    if to in PART_FORMATS:
        if one.form.startswith("mds:"):
            convert = partial(_parts_of_list, one.form.removeprefix("mds:"), wanted or one.name)
        else:
            convert = media_parts(wanted or one.name)
        return Column(one.name, wanted or one.name, one.form, "media", convert, "nothing", spreads=True)
    if one.form.startswith("mds:"):
        return Column(one.name, one.name, one.form, one.form, bytes)
    encoding = wanted or f"list[{one.dtype}]"
    if encoding not in _LISTS or one.missing:
        gap = f", some of them missing or null, first in sample {one.first_gap}" if one.missing else ""
        hint = f"Skip these samples with --missing skip (missing=), or omit the column {one.name!r} (--columns)"
        what = f"mds can't hold the column {one.name!r}"
        raise Unsupported(what, path=shown, found=f"lists of images as {encoding}{gap}", hint=hint)
    convert = partial(_encoded_list, encoding)
    return Column(one.name, one.name, one.form, f"mds:{encoding}", convert, first_number=one.first_number)


def _require_distinct(columns: Sequence[Column], shown: str) -> None:
    """Raise `ConfigError` if two columns would become the same part in some sample."""
    seen: dict[str, Column] = {}
    for column in columns:
        if column.name in seen:
            pair = f"{seen[column.name].source!r} and {column.source!r}"
            what = f"the columns {pair} become the same part"
            raise ConfigError(what, path=shown, found=column.name, hint=_OTHER_PART)
        seen[column.name] = column
    lists = {column.name for column in columns if column.spreads and column.read in _LIST_FORMS}
    for column in columns if lists else ():
        stem = stem_of_numbered(f"{column.name}.jpg" if column.spreads else column.name)
        if stem in lists:
            what = f"the list {stem!r} and the column {column.source!r} become the same parts"
            raise ConfigError(what, path=shown, hint=_OTHER_PART)


def _encoded_list(encoding: str, value: Any) -> bytes:
    return mds_field(encoding).encode(media_list(value))


def _parts_of_list(encoding: str, name: str, data: bytes) -> dict[str, bytes]:
    return media_parts(name)(split_list(encoding, data))


def _stem_of(one: SourceColumn) -> str:
    """Return the name of a part without the extension that its content determines."""
    bare, _, suffix = one.name.rpartition(".")
    return bare if bare and suffix.lower() in IMAGE_SUFFIXES else one.name


def part_name(name: str, kind: str) -> str:
    """Return the part that a column becomes: its name, with an extension unless its own fits the kind."""
    suffix = _PARTS.get(kind, "bin")
    own = stored_class(f"part:{name}")
    if own == stored_class(f"part:{suffix}") and (own != "bytes" or "." in name or name in _BYTES_PARTS):
        return name
    return f"{name}.{suffix}"


def _name_of(one: SourceColumn) -> str:
    """Return the column that a part becomes: its name without an extension that would be added again."""
    if not one.form.startswith("part:"):
        return one.name
    bare = one.name.rpartition(".")[0]
    return bare if bare and part_name(bare, one.kind) == one.name else one.name


def _mds_encoding(one: SourceColumn) -> str:
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


def _require_encoding(to: str, name: str, wanted: str, shown: str) -> None:
    try:
        if to == "mds":
            mds_field(wanted)
        elif to in TEXT_FORMATS:
            text_field(wanted)
        elif to in PART_FORMATS and (not suffix_of(wanted) or "/" in wanted):
            raise ConfigError("not a valid part name", found=repr(wanted), expected="such as txt, jpg, label.cls")
    except PenstockError as error:
        error.what = f"column {name!r}: {error.what}"
        error.path = shown
        raise


# --- rows ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowMaker:
    """Makes rows of the target from rows of the source; picklable.

    Attributes:
        columns: columns of the target.
        is_keyed: the key of a row is its number.
        shown: name of the source in errors.
        rest: what to do with fields that the first samples lack: `"copy"` (stored parts), `"error"`, or `"ignore"` (the
            user selected columns).
        known: fields that are part of a column.
    """

    columns: Sequence[Column]
    is_keyed: bool
    shown: str
    rest: str = "ignore"
    known: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        known = frozenset((KEY, *(column.source for column in self.columns if column.first_number is None)))
        object.__setattr__(self, "known", known)

    def __call__(self, sample: Sample, index: int) -> Sample:
        """Return a row; errors of its columns name the sample."""
        row: Sample = {KEY: f"{index:09d}"} if self.is_keyed else {}
        if self.rest != "ignore" and not sample.keys() <= self.known:
            self._take_rest(row, sample, index)
        for column in self.columns:
            try:
                value = column.value_in(sample)
            except PenstockError as error:
                error.what = f"sample {index}: {error.what}"
                error.path = self.shown
                raise
            if value is None and column.missing == "null":
                row[column.name] = _NULL
                continue
            if value is None:
                if column.missing == "error":
                    hint = "Skip these samples with --missing skip (missing=), or omit the column (--columns)"
                    what = f"sample {index} lacks the column {column.source!r}, or it is null"
                    raise ConfigError(what, path=self.shown, hint=hint)
                if column.source not in sample or column.write != "json":
                    continue
            try:
                made = column.convert(value)
                parts = made if column.spreads else {column.name: made}
                for name in parts:
                    if name in row:
                        raise ConfigError(f"another column also becomes {name!r}", hint=_OTHER_PART)
                row |= parts
            except PenstockError as error:
                error.what = f"sample {index}, column {column.source!r}: {error.what}"
                error.path = error.path or self.shown
                if column.write.startswith("mds:") and error.hint is None and isinstance(value, list | dict | str):
                    error.hint = f"Store it as JSON: --columns {self._with_json(column)} (columns=)"
                raise
        return row

    def _with_json(self, column: Column) -> str:
        """Return all columns with their encodings, but JSON for this one."""
        encodings = {one.source: "json" if one is column else one.write.partition(":")[2] for one in self.columns}
        return ",".join(f"{name}={encoding}" for name, encoding in encodings.items())

    def _take_rest(self, row: Sample, sample: Sample, index: int) -> None:
        """Copy fields that belong to no column, or raise `ConfigError`."""
        stems = {column.source for column in self.columns if column.first_number is not None}
        for name, value in sample.items():
            if name in self.known or value is None or stem_of_numbered(name) in stems:
                continue
            if self.rest == "error":
                what = f"sample {index} has a field {name!r} that the first samples lack"
                raise ConfigError(what, path=self.shown, hint="Select the columns with --columns (columns=)")
            row[name] = value
