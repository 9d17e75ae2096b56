"""A Spark dataframe as MDS: each task writes a separate dataset, and one index covers all of them.

Importing this module requires pyspark and pandas; otherwise it raises an `ImportError` with the packages to install.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from penstock._secrets import logger
from penstock.codec.fields import mds_field
from penstock.compat.streaming.checks import package
from penstock.compat.streaming.util import merge_index as merge_indexes
from penstock.compat.streaming.writers import MDSWriter
from penstock.errors import ConfigError
from penstock.formats.shards.index_json import INDEX_NAME
from penstock.store.place import place_of

__all__ = ["SPARK_TO_MDS", "dataframe_to_mds", "infer_dataframe_schema", "is_json_compatible"]

_types: Any = package("pyspark.sql.types")
_pandas: Any = package("pandas")
_log = logger()

SPARK_TO_MDS: dict[Any, str | None] = {
    _types.ByteType(): "uint8",
    _types.ShortType(): "uint16",
    _types.IntegerType(): "int32",
    _types.LongType(): "int64",
    _types.FloatType(): "float32",
    _types.DoubleType(): "float64",
    _types.DecimalType(): "str_decimal",
    _types.StringType(): "str",
    _types.BinaryType(): "bytes",
    _types.BooleanType(): None,
    _types.TimestampType(): None,
    _types.TimestampNTZType(): None,
    _types.DateType(): None,
    _types.DayTimeIntervalType(): None,
    **{
        _types.ArrayType(element()): f"ndarray:{dtype}"
        for element, dtype in (
            (_types.IntegerType, "int32"),
            (_types.ShortType, "int16"),
            (_types.LongType, "int64"),
            (_types.FloatType, "float32"),
            (_types.DoubleType, "float64"),
        )
    },
}
"""Type in Spark → encoding; None for those that have none."""

_OF_BINARY = ("pil", "png", "jpeg", "pkl")


def is_json_compatible(data_type: Any) -> bool:
    """Whether values of a Spark type can be a column `json`."""
    if isinstance(data_type, _types.StructType):
        return all(is_json_compatible(field.dataType) for field in data_type.fields)
    if isinstance(data_type, _types.ArrayType):
        return is_json_compatible(data_type.elementType)
    if isinstance(data_type, _types.MapType):
        return is_json_compatible(data_type.keyType) and is_json_compatible(data_type.valueType)
    plain = (_types.StringType, _types.IntegerType, _types.FloatType, _types.BooleanType, _types.NullType)
    return isinstance(data_type, plain)


def infer_dataframe_schema(dataframe: Any, user_defined_cols: Mapping[str, str] | None = None) -> dict[str, str] | None:
    """Columns and encodings that fit a dataframe; with columns given, they are held against it instead.

    Raises:
        ConfigError: a type without an encoding, a column that is not there, or an encoding that does not fit it.
    """
    if user_defined_cols is None:
        return {field.name: _encoding_of(field.dataType) for field in dataframe.schema}
    for name, encoding in user_defined_cols.items():
        if name not in dataframe.columns:
            raise ConfigError(f"{name} is not a column of input dataframe", expected=", ".join(dataframe.columns))
        _require_fit(name, encoding, dataframe.schema[name].dataType)
    return None


def _require_fit(name: str, encoding: str, data_type: Any) -> None:
    mds_field(encoding)
    if encoding == "json":
        if not is_json_compatible(data_type):
            raise ConfigError(f"{name} can not be encoded by MDS JSON", found=str(data_type))
    elif encoding in _OF_BINARY:
        if not isinstance(data_type, _types.BinaryType):
            raise ConfigError(f"Non-binary col {name} cannot encode as {encoding}", found=str(data_type))
    else:
        plain = encoding.rpartition(":")[0] if encoding.count(":") == 2 else encoding  # without a shape
        if plain not in SPARK_TO_MDS.values():
            raise ConfigError(f"{plain} is not supported by dataframe_to_mds", found=f"column {name!r}")
        if plain != _encoding_of(data_type):
            what = f"Mismatched types: column name `{name}` is `{_encoding_of(data_type)}` in DataFrame"
            raise ConfigError(what, found=f"`{encoding}` in user_defined_cols")


def _encoding_of(data_type: Any) -> str:
    known = _types.DecimalType() if isinstance(data_type, _types.DecimalType) else data_type
    encoding = SPARK_TO_MDS.get(known)
    if encoding is None:
        raise ConfigError(f"{data_type} is not supported by dataframe_to_mds", hint="Cast it, or give udf_iterable=")
    return encoding


def dataframe_to_mds(
    dataframe: Any,
    merge_index: bool = True,
    mds_kwargs: Mapping[str, Any] | None = None,
    udf_iterable: Callable[..., Iterable[Any]] | None = None,
    udf_kwargs: Mapping[str, Any] | None = None,
) -> tuple[str, str]:
    """Write a Spark dataframe as MDS, one folder per task.

    Args:
        dataframe: of pyspark.
        merge_index: make one index over all folders.
        mds_kwargs: of `MDSWriter`: `out`, and without `udf_iterable` by default `columns` as they fit the dataframe;
            `compression` is `"zstd"` where it is not named.
        udf_iterable: samples of a pandas dataframe.
        udf_kwargs: of it.

    Returns:
        Folder on this machine, and URL; `""` for one that there is not.

    Raises:
        ConfigError: nothing to write, no `out`, no `columns` beside `udf_iterable`, or columns that do not fit.
    """
    if dataframe is None or dataframe.isEmpty():
        raise ConfigError("Input dataframe is None or Empty!")
    given: dict[str, Any] = {"compression": "zstd", **(mds_kwargs or {})}
    if "out" not in given:
        raise ConfigError("`out` and `columns` need to be specified in `mds_kwargs`", found=", ".join(given))
    if udf_iterable is not None and "columns" not in given:
        raise ConfigError("If udf_iterable is specified, user must provide correct `columns` in the mds_kwargs")
    if "columns" not in given:
        given["columns"] = infer_dataframe_schema(dataframe)
        _log.warning("columns of the dataframe: %s", given["columns"])
    elif udf_iterable is None:
        infer_dataframe_schema(dataframe, given["columns"])
    out, keep_local = given.pop("out"), bool(given.pop("keep_local", False))
    local, remote = out if isinstance(out, tuple) else (str(out), "") if place_of(out).is_local else ("", str(out))
    write = partial(_write, (local, remote), given, keep_local, udf_iterable, dict(udf_kwargs or {}))
    fields = [_types.StructField(name, _types.StringType(), False) for name in ("local", "remote")]
    rows = dataframe.mapInPandas(func=write, schema=_types.StructType(fields)).collect()
    if merge_index:
        parts = [(row["local"], row["remote"]) for row in rows]
        if local and remote and keep_local:
            merge_indexes(parts, (local, remote), keep_local=True)
        else:
            merge_indexes([far or near for near, far in parts], remote or local)
    return local, remote


def _write(
    out: tuple[str, str],
    given: Mapping[str, Any],
    keep_local: bool,
    samples_of: Callable[..., Iterable[Any]] | None,
    more: Mapping[str, Any],
    frames: Iterator[Any],
) -> Iterator[Any]:
    """In a task of Spark: write its rows, and give the places of their index."""
    context = package("pyspark").TaskContext.get()
    number = context.taskAttemptId()
    near, far = (f"{one.rstrip('/')}/{number}" if one else "" for one in out)
    where: Any = (near, far) if near and far else near or far
    with MDSWriter(out=where, keep_local=keep_local, **given) as writer:
        for frame in frames:
            for sample in frame.to_dict("records") if samples_of is None else samples_of(frame, **more):
                writer.write(sample)
    places = {"local": near, "remote": far}
    yield _pandas.DataFrame({name: [f"{one}/{INDEX_NAME}" if one else ""] for name, one in places.items()})
