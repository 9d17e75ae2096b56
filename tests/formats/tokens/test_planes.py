"""Planes beside tokens: written and seen together, checked, carried by windows and conversions, refused elsewhere."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import json
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import (
    DTYPES,
    FlatTokensWriter,
    PbinWriter,
    PlaneEntry,
    chunk,
    decode_planes,
    encode_planes,
    is_left_over,
    place_of,
    purge,
    replace,
    waiting_name,
)

import penstock as ps
from penstock.check import summarise
from penstock.errors import ConfigError, Corrupt, NotFound, Truncated, Unsupported

FORMATS = ("pbin", "megatron", "flat-tokens")
SUFFIX = {"pbin": ".pbin", "megatron": "", "flat-tokens": ".zarr"}
BASE = {"pbin": ".pbin", "megatron": ".idx", "flat-tokens": ".zarr"}
LENGTHS = (5, 0, 1, 17, 8, 3, 40, 2)
PLANES = {"loss_mask": "bool", "weight": "float16", "origin": "int32"}


opened: Any = ps.open
joined_sources: Any = ps.Concat
taken_part: Any = ps.Take


def documents(seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "tokens": rng.integers(1, 500, n),
            "loss_mask": rng.random(n) < 0.5,
            "weight": rng.random(n).astype(np.float16),
            "origin": rng.integers(-9, 9, n).astype(np.int32),
        }
        for n in LENGTHS
    ]


def made(folder: Path, format: str = "pbin", seed: int = 0, name: str = "a", **options: Any) -> str:
    path = str(folder / (name + SUFFIX[format]))
    with ps.create(path, format=format, token_bytes=2, planes=PLANES, **options) as writer:
        for one in documents(seed):
            writer.write(one)
    return path


def joined(name: str, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.concatenate([one[name] for one in documents(seed)])


@pytest.mark.parametrize("format", FORMATS)
def test_documents_and_planes_come_back(tmp_path: Path, format: str) -> None:
    source = opened(made(tmp_path, format))
    assert list(source.planes) == list(PLANES)
    for index, one in enumerate(documents()):
        found = source[index]
        for name, value in one.items():
            np.testing.assert_array_equal(found[name], value)
        assert [found[name].dtype for name in PLANES] == list(PLANES.values())
    batch = pickle.loads(pickle.dumps(source)).get_batch([3, 6])
    np.testing.assert_array_equal(batch["origin"][1], documents()[6]["origin"])
    assert {field.name for field in source.schema.fields} == {"tokens", *PLANES}


def test_bits_are_read_from_anywhere(tmp_path: Path) -> None:
    plane: Any = opened(made(tmp_path)).planes["loss_mask"]
    bits = joined("loss_mask")
    for start in range(len(bits)):
        for stop in range(start, len(bits) + 1):
            np.testing.assert_array_equal(plane.read(start, stop), bits[start:stop])
    for length in (1, 7, 8, 9, len(bits)):
        starts = np.arange(len(bits) - length + 1)
        np.testing.assert_array_equal(
            plane.gather(starts, length), np.lib.stride_tricks.sliding_window_view(bits, length)
        )
    with pytest.raises(IndexError):
        plane.read(0, len(bits) + 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(tmp_path: Path, dtype: str) -> None:
    path = str(tmp_path / "a.pbin")
    values = (np.arange(30) % 2).astype(dtype)
    with ps.create(path, format="pbin", token_bytes=2, planes={"one": dtype}) as writer:
        writer.write({"tokens": np.arange(30), "one": values})
    found = opened(path)[0]["one"]
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("format", FORMATS)
def test_the_tokens_alone_are_as_without_planes(tmp_path: Path, format: str) -> None:
    with_planes = made(tmp_path, format)
    bare = str(tmp_path / ("b" + SUFFIX[format]))
    with ps.create(bare, format=format, token_bytes=2) as writer:
        for one in documents():
            writer.write({"tokens": one["tokens"]})
    alone = opened(with_planes, planes=None)
    assert alone.fingerprint == opened(bare).fingerprint != opened(with_planes).fingerprint
    assert set(alone[0]) == {"tokens"}
    assert alone.recipe()["planes"] is None


def test_other_values_are_another_fingerprint(tmp_path: Path) -> None:
    path = str(tmp_path / "b.pbin")
    with ps.create(path, format="pbin", token_bytes=2, planes=PLANES) as writer:
        for one in documents():
            writer.write({**one, "loss_mask": ~one["loss_mask"]})
    assert opened(path).fingerprint != opened(made(tmp_path)).fingerprint


# --- windows ------------------------------------------------------------------------------------------------------


def test_chunks(tmp_path: Path) -> None:
    source = opened(made(tmp_path))
    mask, origin, weight = joined("loss_mask"), joined("origin"), joined("weight")
    begins = np.isin(np.arange(len(mask)), np.cumsum([0, *LENGTHS]))
    bare = ps.Chunk(10)(source)
    np.testing.assert_array_equal(bare[2]["loss_mask"], mask[20:30])
    np.testing.assert_array_equal(bare.get_batch([2, 0])["origin"], np.stack([origin[20:30], origin[:10]]))
    alone = opened(made(tmp_path, name="b"), planes=None)
    shift = ps.Chunk(10, labels="shift", eos_id=0)(source)
    own = ps.Chunk(10, labels="shift", eos_id=0)(alone)
    for index in range(len(shift)):
        found, start = shift[index], index * 10
        np.testing.assert_array_equal(found["loss_mask"], own[index]["loss_mask"] & mask[start + 1 : start + 11])
        np.testing.assert_array_equal(found["origin"], origin[start : start + 10])
    assert {field.name for field in shift.schema.fields} == set(shift[0])
    zero = ps.Chunk(10, labels="start-zero", eos_id=0)(source)
    for index in range(len(zero)):
        found, start = zero[index], index * 10
        np.testing.assert_array_equal(found["loss_mask"], mask[start : start + 10])
        expected = np.append(0, weight[start : start + 9])
        expected[found["is_seq_start"]] = 0
        np.testing.assert_array_equal(found["weight"], expected)
    assert begins.any()


def test_dtypes_as_numpy_has_them(tmp_path: Path) -> None:
    planes: Any = {"a": np.uint16, "b": np.dtype("f2"), "c": bool, "d": "<i4"}
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2, planes=planes) as writer:
        writer.write({"tokens": [1, 2], **{name: [0, 1] for name in planes}})
    assert [one.dtype.name for one in ps.open(tmp_path / "a.pbin").planes.values()] == [
        "uint16", "float16", "bool", "int32",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "planes", [["a"], "a", {"a": None}, {"a": "f8"}, {"a": "(2"}, {"__key__": "bool"}, {1: "bool"}]
)
def test_planes_that_can_not_be(tmp_path: Path, planes: Any) -> None:
    with pytest.raises(ConfigError, match="plane"):
        ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2, planes=planes)
    assert list(tmp_path.iterdir()) == []


def test_windows_of_documents(tmp_path: Path) -> None:
    source = opened(made(tmp_path))
    whole = ps.Whole(8)(source)
    for index, one in enumerate(documents()):
        found, used = whole[index], min(8, LENGTHS[index])
        np.testing.assert_array_equal(found["origin"], np.append(one["origin"], np.zeros(8, np.int32))[:8])
        targets = np.append(one["loss_mask"][1:9], np.zeros(9, np.bool_))[:8]
        np.testing.assert_array_equal(found["loss_mask"], targets)
        assert not found["origin"][used:].any()
    zero = ps.Whole(8, labels="start-zero")(source)
    for index, one in enumerate(documents()):
        found, used = zero[index], min(8, LENGTHS[index])
        np.testing.assert_array_equal(found["loss_mask"], np.append(one["loss_mask"][:8], np.zeros(8, np.bool_))[:8])
        moved = np.append(np.append(0, one["origin"])[:used], np.zeros(8, np.int32))[:8]
        np.testing.assert_array_equal(found["origin"], moved)
    mask, origin, starts = joined("loss_mask"), joined("origin"), np.cumsum([0, *LENGTHS])
    fit = ps.BestFit(16)(source)
    seen = 0
    for index in range(len(fit)):
        found, at = fit[index], 0
        for document, begin, end in fit.place_of(index).documents or ():
            first, stop = starts[document] + begin, starts[document] + end
            np.testing.assert_array_equal(found["origin"][at : at + end - begin], origin[first:stop])
            last = stop == starts[document + 1]
            expected = np.append(mask[first + 1 : stop], False if last else mask[stop])
            np.testing.assert_array_equal(found["loss_mask"][at : at + end - begin], expected)
            at, seen = at + end - begin, seen + end - begin
        assert not found["origin"][at:].any()
    assert seen == sum(LENGTHS)
    blocks = ps.MegatronBlocks(12, labels="shift")(source)
    for index, start in enumerate(blocks.starts.tolist()):
        np.testing.assert_array_equal(blocks[index]["origin"], origin[start : start + 12])
        assert not (blocks[index]["loss_mask"] & ~mask[start + 1 : start + 13]).any()


def test_taken_and_joined_tokens_have_them(tmp_path: Path) -> None:
    one, two = opened(made(tmp_path)), opened(made(tmp_path, seed=1, name="b"))
    both = np.concatenate([joined("origin"), joined("origin", 1)])
    windows = ps.Chunk(13)(joined_sources([one, two]))
    np.testing.assert_array_equal(
        windows.get_batch(range(len(windows)))["origin"].reshape(-1), both[: len(windows) * 13]
    )
    taken = taken_part(one, 3, 7)
    begin = sum(LENGTHS[:3])
    np.testing.assert_array_equal(ps.Chunk(13)(taken)[1]["origin"], joined("origin")[begin + 13 : begin + 26])
    with pytest.raises(ConfigError, match="planes"):
        joined_sources([one, opened(made(tmp_path, name="c"), planes=None)])


# --- what is wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_a_missing_or_torn_plane(tmp_path: Path, format: str) -> None:
    path = made(tmp_path, format)
    [plane] = tmp_path.glob("*.plane.weight-*")
    data = plane.read_bytes()
    plane.write_bytes(data[:-1])
    with pytest.raises(Truncated, match="weight"):
        opened(path)
    plane.unlink()
    with pytest.raises(Corrupt, match="missing"):
        opened(path)
    assert [one.path for one in ps.verify(path)] == [str(plane)]
    assert "weight" not in opened(path, planes=None)[0]
    plane.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    assert ps.verify(path) == []
    assert [(one.code, one.path) for one in ps.verify(path, depth="full")] == [(f"{format}.plane", str(plane))]


def test_an_index_of_other_tokens(tmp_path: Path) -> None:
    path, other = made(tmp_path), made(tmp_path, seed=1, name="b")
    os.replace(other + ".planes", path + ".planes")
    with pytest.raises(Corrupt, match="different tokens"):
        opened(path)
    assert "pbin.planes" in {one.code for one in ps.verify(path)}
    text = (tmp_path / "a.pbin.planes").read_text()
    (tmp_path / "a.pbin.planes").write_text(text.replace('"float16"', '"int16"'))
    with pytest.raises(Corrupt, match="can't be read"):
        opened(path)


@pytest.mark.parametrize("name", ["tokens", "targets", "loss_mask"])
def test_an_index_names_no_column_and_no_plane_twice(tmp_path: Path, name: str) -> None:
    """A plane called `tokens` stood in the place of the tokens of every sample."""
    path = made(tmp_path)
    index = Path(path + ".planes")
    told = decode_planes(index.read_bytes(), path)
    weight = next(one for one in told.planes if one.name == "weight")
    os.link(f"{path}.plane.weight-{weight.digest[:8]}", f"{path}.plane.{name}-{weight.digest[:8]}")
    planes = (*told.planes, PlaneEntry(name, weight.dtype, weight.size_bytes, weight.digest))
    index.write_bytes(encode_planes(told.num_tokens, told.binding, planes))
    with pytest.raises(Corrupt, match="plane index"):
        opened(path)
    assert "pbin.planes" in {one.code for one in ps.verify(path)}


def test_planes_without_an_index_are_found(tmp_path: Path) -> None:
    path = made(tmp_path)
    os.unlink(path + ".planes")
    assert {one.code for one in ps.verify(path, depth="quick")} == {"pbin.planes", "pbin.plane-unlisted"}


def test_what_a_writer_refuses(tmp_path: Path) -> None:
    path = str(tmp_path / "a.pbin")

    def create(planes: dict[str, str], **options: Any) -> Any:
        given: dict[str, Any] = {"format": "pbin", "token_bytes": 2, "planes": planes, **options}
        return ps.create(path, **given)

    for name in ("tokens", "a-b", "../x", ""):
        with pytest.raises(ConfigError, match="name"):
            create({name: "bool"})
    with pytest.raises(ConfigError, match="unsupported dtype"):
        create({"one": "object"})
    with pytest.raises(Unsupported, match="planes"):
        create({"one": "bool"}, format="mds", token_bytes=None, columns={"x": "str"})
    wrong: list[dict[str, Any]] = [
        {"tokens": [1, 2]},
        {"tokens": [1, 2], "one": [1]},
        {"tokens": [1, 2], "one": [1, 300]},
        {"tokens": [1, 2], "one": [1, -1]},
        {"tokens": [1, 2], "one": [0.5, 1]},
        {"tokens": [1, 2], "one": [[1], [1]]},
        {"tokens": [1, 2], "one": ["a", "b"]},
        {"tokens": [1, 2], "one": [1, 2], "two": [1, 2]},
    ]
    for sample in wrong:
        writer = create({"one": "uint8"})
        writer.write({"tokens": [7], "one": [7]})
        with pytest.raises(ConfigError):
            writer.write(sample)
        writer.abort()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("format", FORMATS)
def test_data_with_planes_are_not_replaced_by_bare_tokens(tmp_path: Path, format: str) -> None:
    path = made(tmp_path, format)
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir() if one.is_file()}
    with pytest.raises(ConfigError, match="planes"):
        ps.create(path, format=format, token_bytes=2, overwrite=True)
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir() if one.is_file()} == before


def test_planes_come_in_the_place_of_bare_tokens(tmp_path: Path) -> None:
    with ps.create(str(tmp_path / "a.pbin"), format="pbin", token_bytes=2) as writer:
        writer.write({"tokens": [1, 2, 3]})
    source = opened(made(tmp_path, overwrite=True))
    assert (list(source.planes), len(source)) == (list(PLANES), len(LENGTHS))


@pytest.mark.parametrize("format", FORMATS)
def test_what_a_killed_writer_left(tmp_path: Path, format: str) -> None:
    """Before the tokens come, planes are nobody's; once they are there, they count."""
    path = made(tmp_path, format)
    base = str(tmp_path / ("a" + BASE[format]))
    os.rename(base + ".planes", waiting_name(base + ".planes"))
    assert list(opened(path).planes) == list(PLANES)
    ps.create(path, format=format, token_bytes=2, planes=PLANES, overwrite=True).abort()
    assert list(opened(path).planes) == list(PLANES)
    assert os.path.exists(base + ".planes")
    other = tmp_path / "other"
    other.mkdir()
    made(other, format, seed=1)
    for one in other.iterdir():
        if ".plane" in one.name:
            name = waiting_name(one.name) if one.name.endswith(".planes") else one.name
            os.rename(one, tmp_path / name.replace("a.", "b.", 1))
    bare = str(tmp_path / ("b" + SUFFIX[format]))
    with ps.create(bare, format=format, token_bytes=2) as writer:
        writer.write({"tokens": [1, 2, 3]})
    assert not hasattr(opened(bare), "planes")
    with ps.create(bare, format=format, token_bytes=2, planes={"one": "bool"}, overwrite=True) as writer:
        writer.write({"tokens": [1], "one": [True]})
    assert sorted(one.name.split(".plane.")[1].split("-")[0] for one in tmp_path.glob("b.*plane.*")) == ["one"]


@pytest.mark.parametrize("format", FORMATS)
def test_a_writer_killed_before_its_tokens_does_no_harm_to_the_old_ones(tmp_path: Path, format: str) -> None:
    """Neither to what `verify` says of them, nor to what is written over them next."""
    path, other = str(tmp_path / ("a" + SUFFIX[format])), tmp_path / "other"
    base = str(tmp_path / ("a" + BASE[format]))
    with ps.create(path, format=format, token_bytes=2) as writer:
        writer.write({"tokens": [1, 2, 3]})
    other.mkdir()
    made(other, format, seed=1)
    for one in other.iterdir():
        if ".plane" in one.name:
            os.rename(one, tmp_path / (waiting_name(one.name) if one.name.endswith(".planes") else one.name))
    assert not hasattr(opened(path), "planes")
    assert not ps.verify(path, depth="full")
    with ps.create(path, format=format, token_bytes=2, planes={"one": "bool"}, overwrite=True) as writer:
        writer.write({"tokens": [1], "one": [True]})
    assert not ps.verify(path, depth="full")
    assert [one.name.split(".plane.")[1].split("-")[0] for one in tmp_path.glob("a.*plane.*")] == ["one"]
    assert not os.path.exists(waiting_name(base + ".planes"))


def test_planes_wait_where_one_of_them_is_not_there_yet(tmp_path: Path) -> None:
    """Of tokens that get planes: the index comes first."""
    path = made(tmp_path)
    os.rename(path + ".planes", waiting_name(path + ".planes"))
    next(tmp_path.glob("a.pbin.plane.weight*")).unlink()
    side = json.loads(Path(path + ".penstock").read_text())  # of the same tokens, before they got planes
    Path(path + ".penstock").write_text(json.dumps({key: side[key] for key in side if key not in ("planes", "check")}))
    assert not hasattr(opened(path), "planes")
    assert list(opened(made(tmp_path, overwrite=True)).planes) == list(PLANES)


# --- verbs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("format", FORMATS)
def test_convert_takes_them_along(tmp_path: Path, format: str, to: str) -> None:
    path, target = made(tmp_path, format), str(tmp_path / ("b" + SUFFIX[to]))
    ps.convert(path, target, to=to)
    found = opened(target)
    for index, one in enumerate(documents()):
        for name, value in one.items():
            np.testing.assert_array_equal(found[index][name], value)
    assert ps.verify(target, depth="full") == []
    bare = str(tmp_path / ("c" + SUFFIX[to]))
    ps.convert(path, bare, to=to, drop_planes=True)
    assert not list(tmp_path.glob("c*plane*"))


def test_what_can_not_take_them_refuses(tmp_path: Path) -> None:
    path, bare = made(tmp_path), str(tmp_path / "bare.pbin")
    ps.convert(path, bare, drop_planes=True)
    refused: list[Any] = [
        lambda: ps.convert(path, str(tmp_path / "x.mds"), to="mds"),
        lambda: ps.convert(path, str(tmp_path / "x.pbin"), eos=("add", 0)),
        lambda: ps.merge([path, bare], str(tmp_path / "x.pbin")),
        lambda: opened([path]),
        lambda: opened(str(tmp_path)),
    ]
    for attempt in refused:
        with pytest.raises(ConfigError, match="plane"):
            attempt()
    assert not list(tmp_path.glob("[xy]*"))
    ps.shuffle(path, str(tmp_path / "x.pbin"), seed=1, drop_planes=True)
    assert len(opened(str(tmp_path / "x.pbin"))) == len(LENGTHS)


def test_distributed_jobs_take_them_along(tmp_path: Path) -> None:
    path = made(tmp_path)

    def run(name: str, **options: Any) -> list[str]:
        filtered = ps.filter(path, str(tmp_path / f"{name}.pbin"), min_tokens=2, **options).output
        parts = ps.split(path, str(tmp_path / name), ratio=[0.5, 0.5], by="content", **options)
        return [one.path for one in (filtered, *parts)]

    expected = [held(one) for one in run("alone")]
    for part in (0, 1):
        run("shared", part=(part, 2))
    assert [held(one) for one in run("shared", finish=True)] == expected
    assert [held(one) for one in run("workers", workers=2)] == expected


def held(path: str) -> list[list[Any]]:
    """The documents of a dataset, with their planes."""
    source = opened(path)
    return [[source[index][name].tolist() for name in ("tokens", *PLANES)] for index in range(len(source))]


def given(seed: int = 0) -> list[list[Any]]:
    return [[one[name].tolist() for name in ("tokens", *PLANES)] for one in documents(seed)]


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("format", FORMATS)
def test_every_verb_takes_them_along(tmp_path: Path, format: str, workers: int | None) -> None:
    first, second = made(tmp_path, format), made(tmp_path, format, seed=1, name="b")
    by: dict[str, Any] = {"workers": workers}

    def out(name: str) -> str:
        return str(tmp_path / (name + SUFFIX[format]))

    ps.merge([first, second], out("m"), **by)
    assert held(out("m")) == given() + given(1)
    ps.filter(out("m"), out("f"), min_tokens=3, keep_map=True, **by)
    assert held(out("f")) == [one for one in given() + given(1) if len(one[0]) >= 3]
    ps.shuffle(out("m"), out("s"), seed=3, **by)
    assert held(out("s")) != held(out("m"))
    assert sorted(held(out("s"))) == sorted(held(out("m")))
    by_content = [one.path for one in ps.split(out("m"), str(tmp_path / "y"), ratio=[0.5, 0.5], by="content", **by)]
    assert sorted(held(by_content[0]) + held(by_content[1])) == sorted(held(out("m")))
    chunk(out("m"), out("c"), chunk_id=1, num_chunks=3)
    assert held(out("c")) == (given() + given(1))[6:11]
    for path in (out("m"), out("f"), out("s"), out("c"), *by_content):
        assert not ps.verify(path, depth="full")
    assert not [one.name for one in tmp_path.rglob("*") if is_left_over(one.name)]


SHARED: dict[str, Any] = {
    "merge": lambda first, second, to, **how: ps.merge([first, second], to, **how),
    "shuffle": lambda first, second, to, **how: ps.shuffle(first, to, seed=3, **how),
    "split": lambda first, second, to, **how: ps.split(first, os.path.dirname(to), ratio=[0.5, 0.5], seed=1, **how),
}


@pytest.mark.parametrize("place", ["here", "s3"])
@pytest.mark.parametrize(
    ("verb", "format"),  # chunks of flat-tokens are read whole: no shares of a shuffle of them
    [(verb, format) for verb in SHARED for format in FORMATS if (verb, format) != ("shuffle", "flat-tokens")],
)
def test_an_array_takes_them_along(
    verb: str, format: str, place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    first, second = made(tmp_path, format), made(tmp_path, format, seed=1, name="b")
    root, found = str(tmp_path), list[list[list[list[Any]]]]()
    if place == "s3":
        request.getfixturevalue("s3_server")
        root = f"s3://bucket/{tmp_path.name}"
    for way in ("one", "array"):
        to = f"{root}/{way}/out{SUFFIX[format]}"
        if place == "here":
            (tmp_path / way).mkdir()
        do = functools.partial(SHARED[verb], first, second, to)
        if way == "one":
            do()
        else:
            for part in (1, 0, 1):
                do(part=(part, 2))
            do(finish=True)
            do(finish=True)
        names = ("out",) if verb != "split" else ("a_train", "a_validation")
        outputs = [f"{root}/{way}/{name}{SUFFIX[format]}" for name in names]
        found.append([held(one) for one in outputs])
        assert not [one for path in outputs for one in ps.verify(path, depth="full")]
        assert sum(map(len, found[-1])) == len(LENGTHS) * (2 if verb == "merge" else 1)
    assert found[0] == found[1]
    if place == "here":
        one, array = (
            {
                str(path.relative_to(tmp_path / way)): path.read_bytes()
                for path in (tmp_path / way).rglob("*")
                if path.is_file()
            }
            for way in ("one", "array")
        )
        assert one == array


@pytest.mark.parametrize("verb", ["convert", "merge", "shuffle", "filter"])
def test_a_plane_with_a_flipped_bit_is_not_copied(tmp_path: Path, verb: str) -> None:
    """The copy would have a digest of its own, and `verify` nothing to find."""
    path, target = made(tmp_path), tmp_path / "out" / "x.pbin"
    target.parent.mkdir()
    (plane,) = tmp_path.glob("a.pbin.plane.weight-*")
    data = bytearray(plane.read_bytes())
    data[11] ^= 1
    plane.write_bytes(data)
    runs: dict[str, Any] = {
        "convert": lambda **o: ps.convert(path, target, **o),
        "merge": lambda **o: ps.merge([path], target, **o),
        "shuffle": lambda **o: ps.shuffle(path, target, seed=1, **o),
        "filter": lambda **o: ps.filter(path, target, min_tokens=2, **o),
    }
    with pytest.raises(Corrupt, match="weight differs from the digest"):
        runs[verb]()
    assert list(target.parent.iterdir()) == []
    if verb == "convert":
        ps.convert(path, target, drop_planes=True)


def test_a_document_longer_than_what_is_held_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    replace(monkeypatch, "planes_run_tokens", 4)
    path = made(tmp_path)
    ps.shuffle(path, str(tmp_path / "s.pbin"), seed=1)
    assert sorted(held(str(tmp_path / "s.pbin"))) == sorted(given())
    assert not ps.verify(str(tmp_path / "s.pbin"), depth="full")


def test_excluded_documents_leave_no_values_in_what_verbs_make(tmp_path: Path) -> None:
    path = made(tmp_path)
    ps.exclude(path, indices=[3], reason="test")
    left = given()[:3] + given()[4:]
    ps.merge([path], str(tmp_path / "m.pbin"))
    assert held(str(tmp_path / "m.pbin")) == left
    ps.filter(path, str(tmp_path / "f.pbin"), min_tokens=0, keep_excluded=True)
    assert opened(str(tmp_path / "f.pbin")).excluded_indices.tolist() == [3]
    purge(path, str(tmp_path / "p.pbin"))
    assert held(str(tmp_path / "p.pbin")) == left


def test_in_a_bucket(tmp_path: Path, s3_server: str) -> None:
    root = f"s3://bucket/{tmp_path.name}"
    path = made(tmp_path)
    ps.convert(path, f"{root}/c.pbin")
    ps.merge([f"{root}/c.pbin", path], f"{root}/m.pbin")
    assert held(f"{root}/m.pbin") == given() * 2
    assert not ps.verify(f"{root}/m.pbin", depth="full")
    with ps.create(f"{root}/w.idx", format="megatron", token_bytes=2, planes={"weight": "float16"}) as writer:
        writer.write({"tokens": [1, 2], "weight": [0.5, 2]})
    assert opened(f"{root}/w.idx")[0]["weight"].tolist() == [0.5, 2]
    with pytest.raises(ConfigError, match="data with planes can't be replaced"):
        ps.merge([path], f"{root}/c.pbin", overwrite=True, drop_planes=True)
    assert held(f"{root}/c.pbin") == given()
    ps.merge([path], f"{root}/bare.pbin", drop_planes=True)
    with pytest.raises(ConfigError, match="can't be replaced with data that has planes"):
        ps.merge([path], f"{root}/bare.pbin", overwrite=True)
    assert ps.open(f"{root}/bare.pbin")[3]["tokens"].tolist() == given()[3][0]


def test_flat_tokens_in_a_bucket(tmp_path: Path, s3_server: str) -> None:
    root = f"s3://bucket/{tmp_path.name}"
    path = made(tmp_path)
    ps.convert(path, f"{root}/c.zarr", to="flat-tokens")
    ps.merge([path], f"{root}/m.zarr", to="flat-tokens")
    for target in (f"{root}/c.zarr", f"{root}/m.zarr"):
        assert held(target) == given()
        assert not ps.verify(target, depth="full")
    with pytest.raises(ConfigError, match=r"can't be replaced with data that has planes|can't be replaced"):
        ps.merge([path], f"{root}/m.zarr", to="flat-tokens", overwrite=True)
    assert held(f"{root}/m.zarr") == given()


@pytest.mark.parametrize("verb", ["merge", "filter", "chunk", "split", "convert"])
def test_a_verb_killed_over_old_data_is_not_complete(verb: str, tmp_path: Path) -> None:
    """The same command makes the new data: what stands there, and may look like them, are the old ones."""
    path, target = made(tmp_path), str(tmp_path / "out" / "a_train.pbin")
    (tmp_path / "out").mkdir()

    def run() -> None:
        if verb == "split":
            ps.split(path, str(tmp_path / "out"), ratio=[1, 0], by="content", overwrite=True)
        elif verb == "merge":
            ps.merge([path], target, overwrite=True)
        elif verb == "chunk":
            chunk(path, target, chunk_id=0, num_chunks=1, overwrite=True)
        elif verb == "convert":
            ps.convert(path, target, overwrite=True)
        else:
            ps.filter(path, target, min_tokens=1, overwrite=True)

    kills = 0
    for number in range(1, 10_000):
        for one in (tmp_path / "out").iterdir():
            one.unlink()
        for name in ("a_train.pbin", "a_validation.pbin"):
            with ps.create(str(tmp_path / "out" / name), format="pbin", token_bytes=2) as writer:
                for length in LENGTHS:
                    writer.write({"tokens": [1] * length})
        if not killed_at(number, run):
            break
        kills += 1
        if hasattr(opened(target), "planes"):
            with contextlib.suppress(ConfigError):  # what has planes is not replaced, once it is complete
                run()
        else:
            run()
        assert hasattr(opened(target), "planes")
    assert kills > 10


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("verb", ["create", "convert", "merge", "shuffle", "filter", "split", "chunk"])
def test_every_verb_into_a_bucket(verb: str, format: str, tmp_path: Path, s3_server: str) -> None:
    path = made(tmp_path)

    def written(root: str) -> list[str]:
        target = f"{root}/x{SUFFIX[format]}"
        if verb == "create":
            with ps.create(target, format=format, token_bytes=2, planes=PLANES) as writer:
                for one in documents():
                    writer.write(one)
        elif verb == "convert":
            ps.convert(path, target, to=format)
        elif verb == "merge":
            ps.merge([path, path], target, to=format)
        elif verb == "shuffle":
            ps.shuffle(path, target, seed=3, to=format)
        elif verb == "filter":
            ps.filter(path, target, min_tokens=2, to=format)
        elif verb == "split":
            return [one.path for one in ps.split(path, root, ratio=[0.5, 0.5], to=format)]
        else:
            chunk(path, target, chunk_id=0, num_chunks=2, to=format)
        return [target]

    here, there = written(str(tmp_path / "here")), written(f"s3://bucket/{tmp_path.name}")
    for one, other in zip(here, there, strict=True):
        assert list(opened(other).planes) == list(opened(one).planes)
        assert held(other) == held(one)
        assert not ps.verify(other, depth="full")


def _listed(url: str) -> list[str]:
    place = place_of(url)
    with contextlib.suppress(NotFound):
        return list(place.store.list(place.path))
    return []


def test_planes_of_a_group_that_did_not_come_go(
    tmp_path: Path, s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, root = made(tmp_path), f"s3://bucket/{tmp_path.name}"

    def fails(*_: Any) -> None:
        raise OSError("the store is gone")

    monkeypatch.setattr(FlatTokensWriter, "commit", fails)
    verbs: list[Any] = [(ps.convert, path), (ps.merge, [path])]
    for verb, source in verbs:
        with pytest.raises(OSError, match="the store is gone"):
            verb(source, f"{root}/x.zarr")
        assert not [path for path in _listed(root) if ".plane" in path]


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("verb", ["merge", "filter"])
def test_a_verb_that_fails_leaves_what_was_there(
    verb: str, old: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No planes, and no mark of unfinished work."""
    path, target = made(tmp_path), str(tmp_path / "out" / "x.pbin")
    (tmp_path / "out").mkdir()
    if old:
        with ps.create(target, format="pbin", token_bytes=2) as writer:
            writer.write({"tokens": [1, 2]})
    before = {one.name: one.read_bytes() for one in (tmp_path / "out").iterdir()}

    def full(writer: PbinWriter) -> None:
        writer.abort()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)

    monkeypatch.setattr(PbinWriter, "commit", full)
    run = functools.partial(ps.merge, [path]) if verb == "merge" else functools.partial(ps.filter, path, min_tokens=1)
    with pytest.raises(OSError, match="No space left"):
        run(target, overwrite=old)
    assert {one.name: one.read_bytes() for one in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize("verb", ["merge", "filter", "split"])
def test_verbs_killed_anywhere_leave_both_or_neither(verb: str, tmp_path: Path) -> None:
    """And the same command goes on to the same bytes, after which nothing is left over."""
    path = made(tmp_path)
    (tmp_path / "out").mkdir()
    target = str(tmp_path / "out" / "x.pbin")

    def run() -> list[str]:
        if verb == "split":
            return [one.path for one in ps.split(path, str(tmp_path / "out"), ratio=[0.5, 0.5], by="content")]
        ps.merge([path], target) if verb == "merge" else ps.filter(path, target, min_tokens=2)
        return [target]

    outputs = run()
    expected = {one.name: one.read_bytes() for one in (tmp_path / "out").iterdir()}
    wanted = [held(one) for one in outputs]
    kills = 0
    for number in range(1, 10_000):
        for one in (tmp_path / "out").iterdir():
            one.unlink()
        if not killed_at(number, run):
            break
        kills += 1
        for one, documents_there in zip(outputs, wanted, strict=True):
            if os.path.exists(one):
                assert held(one) == documents_there
        run()
        assert {one.name: one.read_bytes() for one in (tmp_path / "out").iterdir()} == expected
    assert kills > 20


@pytest.mark.parametrize("format", ["pbin", "megatron"])
@pytest.mark.parametrize("num_inner", [1, 2])
def test_replacing_planes_killed_anywhere_leaves_old_or_new(tmp_path: Path, format: str, num_inner: int) -> None:
    """The tokens of both look alike at their edges, or are the same."""
    old = [2] * 2100 + [7] + [2] * 2100
    new = [2] * 2100 + [7] * num_inner + [2] * 2100
    path, folder = str(tmp_path / "out" / ("a" + SUFFIX[format])), tmp_path / "out"
    versions = [(old, [one == 7 for one in old]), (new, [one == 2 for one in new])]

    def write(version: int) -> None:
        tokens, mask = versions[version]
        with ps.create(path, format=format, token_bytes=2, planes={"loss_mask": "bool"}, overwrite=True) as writer:
            writer.write({"tokens": tokens, "loss_mask": mask})

    (tmp_path / "out").mkdir()
    write(1)
    expected = {one.name: one.read_bytes() for one in folder.iterdir()}
    kills = [0, 0]
    for number in range(1, 1000):
        for one in folder.iterdir():
            one.unlink()
        write(0)
        if not killed_at(number, lambda: write(1)):
            break
        source = opened(path)
        content = source[0]["tokens"].tolist(), source[0]["loss_mask"].tolist()
        assert content in versions
        kills[versions.index(content)] += 1
        assert not [one for one in ps.verify(path, depth="full") if one.severity == "error"]
        write(1)
        assert {one.name: one.read_bytes() for one in folder.iterdir()} == expected
    assert min(kills) > 0


def killed_at(number: int, run: Any) -> bool:
    """Whether a child that runs it came to the `number`-th call that changes the disk, before which it is killed."""
    child = os.fork()
    if child == 0:
        calls = itertools.count(1)

        def counted(real: Any) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                if next(calls) == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **options)

            return call

        for name in ("rename", "replace", "link", "unlink", "fsync", "fdatasync"):
            setattr(os, name, counted(getattr(os, name)))
        try:
            run()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_excluded_documents_have_no_planes(tmp_path: Path) -> None:
    path = made(tmp_path)
    ps.exclude(path, indices=[3], reason="test")
    source = opened(path)
    start, stop = sum(LENGTHS[:3]), sum(LENGTHS[:4])
    windows = ps.Chunk(10)(source)
    found = windows.get_batch(range(len(windows)))["weight"].reshape(-1)
    expected = joined("weight").copy()
    expected[start:stop] = 0
    np.testing.assert_array_equal(found, expected[: len(found)])
    target = str(tmp_path / "b.pbin")
    ps.convert(path, target)
    left = [one for index, one in enumerate(documents()) if index != 3]
    for index, one in enumerate(left):
        np.testing.assert_array_equal(opened(target)[index]["origin"], one["origin"])


def test_info_names_them(tmp_path: Path) -> None:
    assert summarise(made(tmp_path))["planes"] == PLANES
