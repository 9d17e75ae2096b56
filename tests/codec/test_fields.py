"""Encodings of columns: the golden values of the original, both ways; what is refused; hostile bytes."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import pickle
import struct
import zlib
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from penstock.codec.fields import mds_encodings, mds_field, text_field
from penstock.errors import ConfigError, Corrupt, FormatError, PenstockError, TooLarge, Truncated, UnsafeData

GOLDEN = Path(__file__).parent.parent / "golden" / "streaming"
LOSSY = {"jpeg", "jpeg_array", "jpegarray", "list[jpeg]"}


# --- golden ----------------------------------------------------------------------------------------------------------


def golden_values() -> Iterator[tuple[str, dict[str, Any], bytes]]:
    """`(encoding, expected, stored bytes)` of every value in mds_all."""
    folder = GOLDEN / "mds_all"
    samples = iter(json.loads((GOLDEN / "mds_all.values.json").read_text())["samples"])
    for shard in json.loads((folder / "index.json").read_text())["shards"]:
        data = (folder / shard["raw_data"]["basename"]).read_bytes()
        (count,) = struct.unpack_from("<I", data)
        for start in struct.unpack_from(f"<{count}I", data, 4):
            expected = next(samples)
            free = [size is None for size in shard["column_sizes"]]
            sizes = iter(struct.unpack_from(f"<{sum(free)}I", data, start))
            at = start + 4 * sum(free)
            for name, encoding, size in zip(
                shard["column_names"], shard["column_encodings"], shard["column_sizes"], strict=True
            ):
                size_bytes = next(sizes) if size is None else size
                yield encoding, expected[name], data[at : at + size_bytes]
                at += size_bytes


def same(value: Any, expected: dict[str, Any]) -> bool:
    """Whether a decoded value is the one that the original read."""
    kind = expected["t"]
    if kind == "none":
        return value is None
    if kind in ("list", "tuple"):
        return (
            type(value).__name__ == kind and all(map(same, value, expected["v"])) and len(value) == len(expected["v"])
        )
    if kind == "dict":
        return list(value) == list(expected["v"]) and all(same(value[key], one) for key, one in expected["v"].items())
    if kind == "image":
        if (value.mode, list(value.size), type(value).__name__) != (
            expected["mode"],
            expected["size"],
            expected["class"],
        ):
            return False
        return hashlib.sha256(value.tobytes()).hexdigest() == expected["pixels_sha256"]
    if kind == "bytes":
        return value.hex() == expected["hex"] if "hex" in expected else sha(value) == expected["sha256"]
    if kind.startswith("np."):
        return type(value).__name__ == kind[3:] and value.tobytes().hex() == expected["hex"]
    if kind in ("int", "float", "decimal"):
        text = repr(value) if kind == "float" else str(value)
        return type(value).__name__.lower() == kind and text == str(expected.get("repr", expected.get("v")))
    if kind in ("str", "bool"):
        return type(value).__name__ == kind and value == expected["v"]
    if kind == "set":
        return isinstance(value, set) and sorted(map(str, value)) == expected["v"]
    assert kind == "ndarray", expected
    shape = tuple(expected["shape"])
    return (value.dtype.name, value.shape, sha(value.tobytes())) == (expected["dtype"], shape, expected["bytes_sha256"])


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_every_golden_value_reads_and_is_written_again() -> None:
    seen = set[str]()
    for encoding, expected, stored in golden_values():
        codec = mds_field(encoding, trust=True)
        value = codec.decode(np.frombuffer(stored, np.uint8))
        assert same(value, expected), (encoding, expected, value)
        if encoding not in LOSSY:
            assert codec.encode(value) == stored, (encoding, expected)
        assert codec.encode(stored) == stored
        assert codec.size_bytes in (None, len(stored))
        seen.add(encoding)
    assert {name.partition(":")[0] for name in seen} == set(mds_encodings())
    assert len(mds_encodings()) == 28


def test_golden_jpegs_given_as_lists_are_written_again() -> None:
    for encoding, _, stored in golden_values():
        if encoding in LOSSY - {"jpeg"}:
            head = 4 if encoding == "list[jpeg]" else 0
            (count,) = struct.unpack_from("<I", stored, head)
            ends = np.cumsum(struct.unpack_from(f"<{count}I", stored, head + 4)) + head + 4 + 4 * count
            files = [stored[start:stop] for start, stop in zip([head + 4 + 4 * count, *ends], ends, strict=False)]
            assert mds_field(encoding).encode(files) == stored


# --- round trips -----------------------------------------------------------------------------------------------------

ARRAYS = hnp.arrays(
    st.sampled_from(["u1", "i1", "<u2", "<i2", "<f2", ">u4", "<i4", ">f4", "<u8", "<i8", ">f8"]).map(np.dtype),
    hnp.array_shapes(min_dims=1, max_dims=4, max_side=5),
)


@settings(max_examples=80, deadline=None)
@given(ARRAYS, st.sampled_from(["", "dtype", "both"]))
def test_arrays_come_back(array: np.ndarray[Any, Any], form: str) -> None:
    shape = ",".join(map(str, array.shape))
    config = {"": "", "dtype": f":{array.dtype.name}", "both": f":{array.dtype.name}:{shape}"}[form]
    codec = mds_field("ndarray" + config)
    stored = codec.encode(array)
    value = codec.decode(memoryview(bytearray(stored)))
    assert value.dtype == array.dtype.newbyteorder("=")
    assert value.shape == array.shape
    assert value.tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes()
    assert not value.flags.writeable
    assert codec.size_bytes in (None, len(stored))
    assert (codec.encode(np.asfortranarray(array)), codec.encode(value)) == (stored, stored)


@pytest.mark.parametrize(("side", "width"), [(255, 0), (256, 1), (65_535, 1), (65_536, 2)])
def test_shapes_take_the_narrowest_width(side: int, width: int) -> None:
    stored = mds_field("ndarray:uint8").encode(np.zeros((side, 1), np.uint8))
    assert stored[0] == 2 << 2 | width
    assert len(stored) == 1 + 2 * (1 << width) + side


def test_a_shape_of_64_bits_is_read() -> None:
    head = bytes([1 << 2 | 3]) + struct.pack("<Q", 3)
    assert mds_field("ndarray:uint8").decode(head + b"abc").tolist() == [97, 98, 99]


def test_arrays_are_views_of_what_they_are_read_from() -> None:
    stored = np.frombuffer(mds_field("ndarray").encode(np.arange(100, dtype=np.uint16)), np.uint8)
    assert np.shares_memory(mds_field("ndarray").decode(stored), stored)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_numbers_come_back(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([name for name in mds_encodings() if name[-1].isdigit()]))
    dtype = np.dtype(name)
    value = data.draw(hnp.from_dtype(dtype))
    codec = mds_field(name)
    stored = codec.encode(value)
    assert stored == dtype.type(value).tobytes()
    back = codec.decode(stored)
    assert (type(back), back.tobytes()) == (type(value), stored)
    if dtype.kind != "f":
        assert (
            codec.encode(int(value))
            == codec.encode(str(value))
            == codec.encode(float(int(value)) if dtype.itemsize < 8 else value)
            == stored
        )


@given(st.integers(-(2**63), 2**63 - 1))
@settings(max_examples=20, deadline=None)
def test_ints_come_back(value: int) -> None:
    assert mds_field("int").decode(mds_field("int").encode(value)) == value
    for codec in (mds_field("str_int"), text_field("int")):
        assert codec.decode(codec.encode(value * 3**50)) == value * 3**50


@given(st.floats(), st.text(st.characters(exclude_categories=["Cs"])))
@settings(max_examples=30, deadline=None)
def test_texts_come_back(number: float, text: str) -> None:
    for codec in (mds_field("str_float"), text_field("float")):
        assert struct.pack("d", codec.decode(codec.encode(number))) == struct.pack("d", number) or math.isnan(number)
    for codec in (mds_field("str"), text_field("str")):
        assert codec.decode(memoryview(codec.encode(text))) == text
    assert mds_field("json").decode(mds_field("json").encode({text: [number, None]}))[text][1] is None


def test_json_is_as_the_original_writes_it() -> None:
    encode = mds_field("json").encode
    assert encode({"b": "é", "a": [1.5, math.nan, None]}) == b'{"b": "\\u00e9", "a": [1.5, NaN, null]}'
    assert encode(np.arange(3)) == b"[0, 1, 2]"


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "La", "RGB", "YCbCr", "LAB", "HSV", "RGBA", "RGBX", "RGBa", "CMYK", "I", "F", "I;16"]
)
def test_raw_images_come_back(mode: str) -> None:
    image = Image.new(mode, (9, 4))
    codec = mds_field("pil")
    stored = codec.encode(image)
    assert stored[:12] == struct.pack("<3I", 9, 4, len(mode))
    back = codec.decode(stored)
    assert (back.mode, back.size, back.tobytes()) == (mode, (9, 4), image.tobytes())
    assert mds_field("list[pil]").decode(mds_field("list[pil]").encode([image, stored]))[1].tobytes() == image.tobytes()


def test_a_jpeg_file_that_is_there_is_stored_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    Image.new("RGB", (8, 8), "red").save(path, quality=20)
    with Image.open(path) as image:
        stored = path.read_bytes()
        assert mds_field("jpeg").encode(image) == stored
        path.unlink()
        image_again = Image.open(io.BytesIO(stored))
        again = mds_field("jpeg").encode(image_again)
        assert again != stored
        assert mds_field("jpeg").decode(again).size == (8, 8)


def test_codecs_are_picklable_and_describe_their_columns() -> None:
    for name in [*mds_encodings(), "ndarray:int16:3,4"]:
        codec = pickle.loads(pickle.dumps(mds_field(name)))
        assert (codec.encoding, codec.unsafe) == (name, name == "pkl")
    assert (codec.size_bytes, codec.dtype, codec.shape, codec.kind) == (24, "int16", (3, 4), "ndarray")
    assert (mds_field("int").dtype, mds_field("int").shape, mds_field("float16").size_bytes) == ("int64", (), 2)
    assert {text_field(name).kind for name in ("str", "int", "float")} == {"text", "int", "float"}


# --- what is refused -------------------------------------------------------------------------------------------------

IMAGE = Image.new("RGBA", (2, 2))


@pytest.mark.parametrize(
    ("encoding", "value"),
    [
        ("bytes", bytearray(b"x")),
        ("str", b"x".decode() + "\ud800"),
        ("str", 3),
        ("int", 3.0),
        ("int", "3"),
        ("uint8", 3.7),
        ("uint8", "x"),
        ("uint8", None),
        ("uint8", math.nan),
        ("uint8", np.array([1, 2])),
        ("float32", "x"),
        ("float32", 1j),
        ("float64", [1.0, 2.0]),
        ("str_int", True),
        ("str_int", 1.0),
        ("str_float", 1),
        ("str_decimal", 1.5),
        ("json", {1, 2}),
        ("json", np.int64(3)),
        ("ndarray", [1, 2]),
        ("ndarray", np.array(3)),
        ("ndarray", np.zeros((2, 0), np.uint8)),
        ("ndarray", np.zeros(3, np.bool_)),
        ("ndarray", np.zeros(3, np.complex64)),
        ("ndarray:int16", np.zeros(3, np.int32)),
        ("ndarray:int16:3", np.zeros(4, np.int16)),
        ("pil", b"x".decode()),
        ("pil", Image.new("P", (2, 2))),
        ("jpeg", IMAGE),
        ("jpeg", np.zeros((2, 2, 3), np.uint8)),
        ("png", 3),
        ("jpeg_array", []),
        ("jpeg_array", [IMAGE]),
        ("list[png]", (IMAGE,)),
        ("list[jpeg]", [IMAGE]),
        ("pkl", iter(lambda: 0, 1)),
        ("int", b"1234"),
        ("ndarray:int16:3", b"12345"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(encoding: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        mds_field(encoding).encode(value)
    assert caught.value.found is not None


@pytest.mark.parametrize(
    ("encoding", "value"),
    [
        ("int", 2**63),
        ("uint8", 256),
        ("uint8", np.int64(300)),
        ("int8", -129),
        ("uint64", -1),
        ("float16", 1e9),
        ("float32", np.float64(1e300)),
        ("float64", 10**400),
    ],
)
def test_a_number_out_of_range_is_refused(encoding: str, value: Any) -> None:
    with pytest.raises(TooLarge):
        mds_field(encoding).encode(value)


def test_more_digits_than_python_reads_are_refused() -> None:
    for codec in (mds_field("str_int"), text_field("int")):
        with pytest.raises(TooLarge):
            codec.encode(10**5000)


def test_infinities_are_no_overflow() -> None:
    assert np.isinf(mds_field("float16").decode(mds_field("float16").encode(math.inf)))


@pytest.mark.parametrize(
    "encoding",
    [
        "nope",
        "int:3",
        "foo:3",
        "ndarray:int:3",
        "ndarray::2,2",
        "ndarray:int16:",
        "ndarray:int16:0",
        "ndarray:int16:2,-1",
        "ndarray:int16:" + ",".join(["1"] * 64),
        "bool",
    ],
)
def test_an_unknown_encoding_is_refused(encoding: str) -> None:
    with pytest.raises(ConfigError):
        mds_field(encoding)


def test_the_nearest_name_is_offered() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'ndarray'"):
        mds_field("nd_array")
    with pytest.raises(ConfigError, match="str, int, float"):
        text_field("json")


def test_pickles_need_trust() -> None:
    with pytest.raises(UnsafeData, match="trust"):
        mds_field("pkl").decode(pickle.dumps([1]))
    assert mds_field("pkl", trust=True).decode(mds_field("pkl").encode({1})) == {1}
    with pytest.raises(Corrupt):
        mds_field("pkl", trust=True).decode(b"\x80")


# --- bytes in the place of a value -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "given"),
    [
        ("pkl", b"abc"),
        ("pkl", b""),
        ("pkl", pickle.dumps([1, 2]) + b"."),
        ("pkl", pickle.dumps([1, 2])[:-1]),
        ("str", b"\xff"),
        ("json", b"{'a': 1}"),
        ("str_int", b"one"),
        ("str_float", b"1,5"),
        ("str_decimal", b""),
        ("ndarray", b"abc"),
        ("ndarray:int16", b""),
        ("pil", b"abc"),
        ("pil", struct.pack("<3I", 2, 2, 1) + b"L" + b"123"),
        ("jpeg_array", struct.pack("<2I", 1, 4) + b"abc"),
        ("jpegarray", struct.pack("<I", 0)),
        ("list[jpeg]", b"abc"),
        ("list[pil]", struct.pack("<3I", 0, 1, 4) + b"abc"),
        ("list[png]", struct.pack("<I", 0)),
    ],
)
def test_bytes_that_could_never_be_read_are_refused_when_written(encoding: str, given: bytes) -> None:
    with pytest.raises(ConfigError, match="can't be decoded"):
        mds_field(encoding).encode(given)


def test_bytes_that_are_a_stored_value_are_taken() -> None:
    class Ran:
        def __reduce__(self) -> Any:
            return (pytest.fail, ("it ran",))

    for encoding, value in (("pkl", Ran()), ("pkl", b"abc" * 1000), ("pkl", None)):
        stored = pickle.dumps(value)
        assert mds_field(encoding).encode(stored) == stored
    for encoding, value in (("str", "a"), ("json", {"a": 1}), ("str_int", 7), ("ndarray", np.arange(3))):
        stored = mds_field(encoding).encode(value)
        assert mds_field(encoding).encode(stored) == stored
    assert mds_field("jpeg").encode(b"any file") == b"any file"
    assert mds_field("list[pil]").encode(struct.pack("<2I", 0, 0)) == struct.pack("<2I", 0, 0)


# --- damaged and hostile bytes ---------------------------------------------------------------------------------------


def png(width: int, height: int) -> bytes:
    """A PNG that states a size and holds no pixels."""
    file = io.BytesIO()
    Image.new("1", (1, 1)).save(file, "PNG")
    head = b"IHDR" + struct.pack(">2I", width, height) + b"\1\0\0\0\0"
    return (
        file.getvalue()[:8] + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head)) + file.getvalue()[33:]
    )


@pytest.mark.parametrize(
    ("encoding", "stored", "kind"),
    [
        ("str", b"ab\xff", Corrupt),
        ("int", b"1234567", Truncated),
        ("int", b"123456789", Corrupt),
        ("uint16", b"1", Truncated),
        ("float16", b"123", Corrupt),
        ("str_int", b"1.5", Corrupt),
        ("str_int", b"9" * 5000, Corrupt),
        ("str_float", b"x", Corrupt),
        ("str_decimal", b"1,5", Corrupt),
        ("json", b"{", Corrupt),
        ("json", b"[" * 100_000, Corrupt),
        ("json", b"\xff", Corrupt),
        ("ndarray", b"", Truncated),
        ("ndarray", b"\x08", Truncated),
        ("ndarray", b"\x07\x04\x01x", Corrupt),
        ("ndarray", b"\x08\x00x", Corrupt),
        ("ndarray", b"\x08\x04\x00", Corrupt),
        ("ndarray", b"\x08\x04\x02x", Truncated),
        ("ndarray", b"\x08\x04\x01xy", Corrupt),
        ("ndarray", b"\x08\xff" + b"\xff" * 10, Truncated),
        ("ndarray", b"\x08\x0b" + b"\xff" * 16, Truncated),
        ("ndarray:int16:2", b"123", Truncated),
        ("pil", b"123", Truncated),
        ("pil", struct.pack("<3I", 2, 2, 2**32 - 1), Truncated),
        ("pil", struct.pack("<3I", 2, 2, 1) + b"L123", Truncated),
        ("pil", struct.pack("<3I", 2, 2, 1) + b"L12345", Corrupt),
        ("pil", struct.pack("<3I", 2**31, 2**31, 1) + b"L12345", Truncated),
        ("pil", struct.pack("<3I", 2, 2, 1) + b"\xff1234", Corrupt),
        ("pil", struct.pack("<3I", 0, 2**32 - 1, 1) + b"L", TooLarge),
        ("png", png(30_000, 30_000), TooLarge),
        ("png", b"", Corrupt),
        ("jpeg", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", Corrupt),
        ("jpeg_array", b"", Truncated),
        ("jpeg_array", bytes(4), Corrupt),
        ("jpeg_array", struct.pack("<I", 2**32 - 1), Truncated),
        ("jpeg_array", struct.pack("<3I", 2, 2**32 - 1, 2**32 - 1), Truncated),
        ("list[png]", bytes(4), Truncated),
        ("list[png]", struct.pack("<3I", 0, 1, 2) + b"xx", Corrupt),
        ("list[png]", struct.pack("<3I", 0, 1, 2) + b"xxx", Corrupt),
        ("list[pil]", struct.pack("<3I", 0, 1, 2) + b"xx", Truncated),
    ],
)
def test_damaged_bytes_are_a_typed_error(encoding: str, stored: bytes, kind: type[PenstockError]) -> None:
    with pytest.raises(kind) as caught:
        mds_field(encoding).decode(memoryview(stored))
    assert caught.value.offset_bytes is not None


def test_an_error_in_a_list_counts_from_the_start_of_the_value() -> None:
    with pytest.raises(Truncated) as caught:
        mds_field("list[pil]").decode(struct.pack("<4I", 0, 2, 13, 2) + struct.pack("<3I", 0, 0, 1) + b"Lxx")
    assert caught.value.offset_bytes == 16 + 13 + 2


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([name for name in mds_encodings() if name != "pkl"]), st.binary(max_size=60))
def test_any_bytes_are_a_value_or_a_format_error(encoding: str, stored: bytes) -> None:
    with contextlib.suppress(FormatError):
        mds_field(encoding).decode(stored)


def test_decimals_keep_their_digits() -> None:
    assert str(mds_field("str_decimal").decode(mds_field("str_decimal").encode(Decimal("1.500")))) == "1.500"
