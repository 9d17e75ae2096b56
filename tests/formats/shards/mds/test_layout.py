"""Samples of MDS: every way to read them gives the same, for any columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import ConfigError, Unsupported
from penstock.formats.shards.index_json import Layout
from penstock.formats.shards.mds.layout import mds_codec, mds_columns
from penstock.testing.equality import row_matches, same
from penstock.testing.strategies import for_all, texts
from penstock.types import OpenOptions

SHAPES = st.sampled_from([(1,), (3,), (2, 2), (300,)])


def arrays(dtype: str, shape: tuple[int, ...] | None = None) -> st.SearchStrategy[Any]:
    def make(place: int, of: tuple[int, ...]) -> Any:
        return (np.arange(np.prod(of)) % 100 + place).astype(dtype).reshape(of)

    return st.builds(make, st.integers(0, 20), SHAPES if shape is None else st.just(shape))


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bytes": st.binary(max_size=5),
    "str": texts(6),
    "int": st.integers(-(1 << 63), (1 << 63) - 1),
    "uint16": st.integers(0, 65_535).map(np.uint16),
    "float32": st.floats(width=32).map(np.float32),
    "str_int": st.integers(-(1 << 70), 1 << 70),
    "str_float": st.floats(),
    "json": st.recursive(st.integers() | st.text("ab"), lambda inner: st.lists(inner, max_size=2), max_leaves=3),
    "ndarray": arrays("int16") | arrays("uint8"),
    "ndarray:uint16": arrays("uint16"),
    "ndarray:float64:2,2": arrays("float64", (2, 2)),
}


@st.composite
def datasets(draw: st.DrawFn) -> tuple[dict[str, str], list[dict[str, Any]], list[str]]:
    encodings = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4))
    names = draw(st.lists(st.sampled_from("aZé_b"), min_size=len(encodings), max_size=len(encodings), unique=True))
    columns = dict(zip(names, encodings, strict=True))
    sample = st.fixed_dictionaries({name: VALUES[encoding] for name, encoding in columns.items()})
    samples = draw(st.lists(sample, min_size=1, max_size=14))
    if draw(st.booleans()):
        samples = samples[:1] * 12  # all of one shape
    return columns, samples, draw(st.lists(st.sampled_from(names), min_size=1, unique=True))


def test_every_way_to_read(tmp_path: Path) -> None:
    made = iter(range(1000))

    @for_all(datasets(), examples=25)
    def law(case: Any) -> None:
        columns, samples, wanted = case
        for limit in (None, 600):
            path = tmp_path / str(next(made))
            with ps.create(path, format="mds", columns=columns, size_limit=limit) as writer:
                for sample in samples:
                    writer.write(sample)
            order = np.random.default_rng(len(samples)).integers(0, len(samples), 17)
            for names in (None, wanted):
                for read in ("mmap", "pread"):
                    source: Any = ps.open(path, columns=names, read=read)
                    kept = [{name: sample[name] for name in names or columns} for sample in samples]
                    assert all(same(source[index], sample) for index, sample in enumerate(kept))
                    batch = source.get_batch(order)
                    assert all(row_matches(batch, row, kept[index]) for row, index in enumerate(order.tolist()))


def test_arrays_are_views_of_the_file(tmp_path: Path) -> None:
    with ps.create(tmp_path / "a", format="mds", columns={"x": "ndarray:uint16:2048"}) as writer:
        writer.write_batch({"x": np.arange(4 * 2048, dtype=np.uint16).reshape(4, 2048)})
    source: Any = ps.open(tmp_path / "a")
    value = source[2]["x"]
    assert np.shares_memory(value, source._shard(0).array)
    assert not value.flags.writeable
    batch = source.get_batch([2, 2, 0])
    batch["x"][0] = 0
    assert source[2]["x"][5] == 2 * 2048 + 5


def layout(encodings: dict[str, str], sizes: list[int | None]) -> Layout:
    return Layout("mds", tuple(encodings), tuple(encodings.values()), tuple(sizes))


def test_a_fixed_size_may_be_declared_free() -> None:
    codec = mds_codec(layout({"b": "int", "a": "uint8"}, [None, None]), OpenOptions())
    data = b"\x08\0\0\0\x01\0\0\0" + (7).to_bytes(8, "little") + b"\x05"
    assert codec.decode(memoryview(data), 0, len(data)) == {"b": 7, "a": 5}
    assert codec.decode_many is not None
    many = codec.decode_many(np.frombuffer(data * 2, np.uint8), np.array([0, 17]), np.array([17, 34]))
    assert many is not None
    assert many["b"].tolist() == [7, 7]


def test_sizes_of_encodings() -> None:
    with pytest.raises(Unsupported):
        mds_columns(layout({"a": "int"}, [4]))
    with pytest.raises(ConfigError):
        mds_columns(layout({"a": "nothing"}, [None]))
    (only,) = mds_columns(layout({"a": "bytes"}, [3]))
    assert only.size_bytes == 3


def test_irregular_rows_are_left_to_the_decoder_of_single_samples() -> None:
    codec = mds_codec(layout({"a": "ndarray:uint16"}, [None]), OpenOptions())
    assert codec.decode_many is not None
    data = np.frombuffer(b"\x04\0\0\0\x04\x01\x09\x09" * 2, np.uint8)
    starts, stops = np.array([0, 8]), np.array([8, 16])
    assert codec.decode_many(data, starts, stops)["a"].tolist() == [[0x909], [0x909]]  # type: ignore[index]
    for start, stop in ((1, 9), (0, 9), (0, 3)):
        assert codec.decode_many(data, np.array([0, start]), np.array([8, stop])) is None
