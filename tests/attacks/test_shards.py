"""Shards and indexes that mean harm: typed errors that name shard and sample, no code, no hang, bounded memory."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.internals import FAMILIES, Compression, compress

import penstock as ps
from penstock.errors import Corrupt, FormatError, PenstockError, TooLarge, Truncated, UnsafeData, Unsupported
from penstock.types import Finding

FREE_BYTES = 12 << 20
WRITERS: dict[str, dict[str, Any]] = {
    "mds": {"columns": {"a": "str", "n": "int"}, "size_limit": 450},
    "csv": {"columns": {"a": "str", "n": "int"}, "size_limit": 100},
    "json-shards": {"columns": {"a": "str", "n": "int"}, "size_limit": 200},
}
SUFFIXES = {"mds": "mds", "csv": "csv", "json-shards": "json"}


@contextmanager
def bounded(free_bytes: int = FREE_BYTES) -> Iterator[None]:
    """Fails where more memory is taken than an attack may cost."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < free_bytes
    finally:
        tracemalloc.stop()


def make(folder: Path, form: str, **options: Any) -> Path:
    with ps.create(folder, format=form, **(WRITERS[form] | options)) as writer:
        for number in range(24):
            writer.write({"a": f"text {number}", "n": number})
    return folder


def change(folder: Path, edit: Callable[[Any], Any]) -> None:
    path = folder / "index.json"
    index = json.loads(path.read_text())
    edit(index)
    path.write_text(json.dumps(index))


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def read_all(folder: Path, form: str) -> None:
    source = ps.open(folder, format=form)
    for index in range(min(len(source), 10_000)):
        source[index]
    source.get_batch(list(range(len(source))))


def read_some(folder: Path, form: str) -> None:
    source = ps.open(folder, format=form)
    for place in {0, len(source) // 2, len(source) - 1} & set(range(min(len(source), 10_000))):
        source[place]


def said(read: Callable[[], Any]) -> PenstockError | None:
    """The refusal; None where there is none. Any other error is one of the test."""
    try:
        read()
    except PenstockError as error:
        return error
    return None


def refusal(folder: Path, form: str) -> tuple[PenstockError, list[Finding]]:
    """What reading says, and the error findings of a full check; neither may cost much."""
    with bounded():
        with pytest.raises(PenstockError) as caught:
            read_all(folder, form)
        findings = [one for one in ps.verify(folder, format=form, depth="full") if one.severity == "error"]
        ps.repair(folder, format=form)
    assert findings, "reading refuses what check finds nothing wrong with"
    return caught.value, findings


# --- the index -------------------------------------------------------------------------------------------------------

INDEX_ATTACKS: dict[str, tuple[type[PenstockError], Callable[[Any], Any]]] = {
    "unknown version": (Unsupported, lambda index: index.update(version=3)),
    "version of a shard": (Unsupported, lambda index: index["shards"][1].update(version=1)),
    "unknown format": (Unsupported, lambda index: index["shards"][1].update(format="MDS")),
    "unknown key": (Corrupt, lambda index: index["shards"][1].update(raw_dat={})),
    "missing key": (Corrupt, lambda index: index["shards"][1].pop("size_limit")),
    "unknown key of a file": (Corrupt, lambda index: index["shards"][1]["raw_data"].update(mode="w")),
    "no list": (Corrupt, lambda index: index.update(shards={})),
    "parent": (UnsafeData, lambda index: index["shards"][1]["raw_data"].update(basename="../outside")),
    "deep parent": (UnsafeData, lambda index: index["shards"][1]["raw_data"].update(basename="a/../../outside")),
    "absolute": (UnsafeData, lambda index: index["shards"][1]["raw_data"].update(basename="/etc/passwd")),
    "empty name": (UnsafeData, lambda index: index["shards"][1]["raw_data"].update(basename="")),
    "zero byte": (UnsafeData, lambda index: index["shards"][1]["raw_data"].update(basename="a\0b")),
    "the folder": (UnsafeData, lambda index: index["shards"][1]["raw_data"].update(basename=".")),
    "same name twice": (
        Corrupt,
        lambda index: index["shards"][1]["raw_data"].update(basename=index["shards"][0]["raw_data"]["basename"]),
    ),
    "negative samples": (Corrupt, lambda index: index["shards"][1].update(samples=-1)),
    "samples of 64 bits": (Corrupt, lambda index: index["shards"][1].update(samples=2**64)),
    "samples that overflow": (TooLarge, lambda index: [one.update(samples=2**63 - 1) for one in index["shards"]]),
    "samples as a float": (Corrupt, lambda index: index["shards"][1].update(samples=3.5)),
    "negative size": (Corrupt, lambda index: index["shards"][1]["raw_data"].update(bytes=-1)),
    "size that overflows": (Corrupt, lambda index: index["shards"][1]["raw_data"].update(bytes=10**30)),
    "columns as text": (Corrupt, lambda index: index["shards"][1].update(hashes="sha1")),
}


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("name", INDEX_ATTACKS)
def test_an_index_that_lies_is_refused_by_shard(name: str, form: str, tmp_path: Path) -> None:
    kind, edit = INDEX_ATTACKS[name]
    folder = make(tmp_path / "set", form)
    (tmp_path / "outside").write_bytes(b"secret")
    change(folder, edit)
    error, findings = refusal(folder, form)
    assert isinstance(error, kind), error
    assert "index.json" in str(error)
    assert [one.code for one in findings] == ["shards.index"]
    if name not in ("unknown version", "no list", "samples that overflow"):
        assert "shard 1" in str(error)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"shards": 3, "version": 2}',
        b'{"shards": []}',
        b'{"version": 2}',
        b'\xff\xfe{"shards": [], "version": 2}',
        b'{"shards": ' + b"[" * 200_000 + b"]" * 200_000 + b', "version": 2}',
        b'{"shards": [], "version": ' + b"9" * 5000 + b"}",
        b'{"shards": [{}], "version": 2}',
    ],
)
def test_an_index_that_is_none(data: bytes, tmp_path: Path) -> None:
    folder = make(tmp_path / "set", "mds")
    (folder / "index.json").write_bytes(data)
    error, _ = refusal(folder, "mds")
    assert isinstance(error, FormatError)


@pytest.mark.parametrize("sizes", [[None], [None, 4], [None, 2**62], [8, 8, 8]])
def test_column_sizes_that_do_not_fit(sizes: list[int | None], tmp_path: Path) -> None:
    folder = make(tmp_path / "set", "mds")
    change(folder, lambda index: index["shards"][1].update(column_sizes=sizes))
    refusal(folder, "mds")


# --- links -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_links_out_of_the_folder(form: str, kind: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "set", form)
    name = f"shard.00001.{SUFFIXES[form]}"
    (tmp_path / "outside").mkdir()
    os.rename(folder / name, tmp_path / "outside" / name)
    if kind == "file":
        (folder / name).symlink_to(tmp_path / "outside" / name)
    else:
        (folder / "inner").symlink_to(tmp_path / "outside")
        change(folder, lambda index: index["shards"][1]["raw_data"].update(basename=f"inner/{name}"))
    error, findings = refusal(folder, form)
    assert isinstance(error, UnsafeData)
    assert "shards.link" in {one.code for one in findings}


# --- shards ----------------------------------------------------------------------------------------------------------


def table_file(folder: Path, form: str) -> Path:
    """The file of shard 1 that holds its table of offsets."""
    return folder / f"shard.00001.{SUFFIXES[form]}{'' if form == 'mds' else '.meta'}"


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("count", [0, 1, 2**31, 2**32 - 1])
def test_counts_that_disagree_with_the_index(form: str, count: int, tmp_path: Path) -> None:
    folder = make(tmp_path / "set", form)
    overwrite(table_file(folder, form), 0, struct.pack("<I", count))
    error, findings = refusal(folder, form)
    assert isinstance(error, Corrupt)
    assert "shard 1" in str(error)
    assert "shard 1" in str(findings[0].found)


@pytest.mark.parametrize("form", WRITERS)
def test_an_index_that_states_more_samples_than_a_shard_can_hold(form: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "set", form)
    change(folder, lambda index: index["shards"][1].update(samples=2**32 - 1))
    overwrite(table_file(folder, form), 0, struct.pack("<I", 2**32 - 1))
    with bounded():
        source = ps.open(folder, format=form)
        with pytest.raises(Truncated, match="shard 1"):
            source[int(source.block_starts[1])]
        found = [one for one in ps.verify(folder, format=form, depth="full") if one.severity == "error"]
    assert "shard 1" in str(found[0].found)


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize(("place", "value"), [(0, 0), (1, 0), (2, 2**32 - 1), (3, 1), (-1, 2**32 - 1)])
def test_offsets_out_of_order_or_beyond_the_file(form: str, place: int, value: int, tmp_path: Path) -> None:
    folder = make(tmp_path / "set", form)
    path = table_file(folder, form)
    (count,) = struct.unpack("<I", path.read_bytes()[:4])
    overwrite(path, 4 + 4 * (place % (count + 1)), struct.pack("<I", value))
    if form == "json-shards" and (place, value) == (0, 0):
        read_all(folder, form)  # that is where the first row is
        return
    error, _ = refusal(folder, form)
    assert isinstance(error, Corrupt)
    assert "shard 1" in str(error)


def test_sizes_in_a_sample_that_overflow(tmp_path: Path) -> None:
    folder = make(tmp_path / "set", "mds")
    path = folder / "shard.00001.mds"
    start = struct.unpack_from("<I", path.read_bytes(), 4 + 4 * 2)[0]
    for size in (2**32 - 1, 2**31, 0, 1000):
        overwrite(path, start, struct.pack("<I", size))
        error, findings = refusal(folder, "mds")
        assert "sample 2 of shard 1" in str(error)
        assert error.offset_bytes == start
        assert any("sample 2 of shard 1" in str(one.found) for one in findings)


def test_a_cut_shard_at_every_length(tmp_path: Path) -> None:
    folder = make(tmp_path / "set", "mds")
    path = folder / "shard.00001.mds"
    data = path.read_bytes()
    for size in range(0, len(data), 17):
        path.write_bytes(data[:size])
        with pytest.raises(FormatError, match=r"shard\.00001\.mds"):
            read_all(folder, "mds")


@pytest.mark.parametrize("form", ["csv", "json-shards"])
def test_text_that_is_not_utf8(form: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "set", form, hashes=[])
    path = folder / f"shard.00001.{SUFFIXES[form]}"
    overwrite(path, path.read_bytes().index(b"text"), b"\xff\xfe")
    error, _ = refusal(folder, form)
    assert isinstance(error, Corrupt)
    assert "sample 0 of shard 1" in str(error)


@pytest.mark.parametrize("row", [b"[" * 5000, b'{"a": 1', b"9" * 5000, b"\0\0", b'{"n": 1e999999}', b'"\\ud800"'])
def test_lines_that_are_no_json(row: bytes, tmp_path: Path) -> None:
    with ps.create(tmp_path / "set", format="json-shards", columns={"a": "str"}, hashes=[]) as writer:
        writer.write({"a": "x" * len(row)})
    path = tmp_path / "set" / "shard.00000.json"
    path.write_bytes(row.ljust(path.stat().st_size - 1) + b"\n")
    with bounded():
        error = said(lambda: ps.open(tmp_path / "set")[0])
    assert error is None or (isinstance(error, Corrupt) and "sample 0 of shard 0" in str(error))


# --- bombs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_shard_that_expands_past_its_index(family: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "set", "mds", compression=family, hashes=[])
    bomb = compress(bytes(1 << (24 if family == "snappy" else 28)), Compression(family, 1 if family == "br" else None))
    name = f"shard.00001.mds.{family}"
    (folder / name).write_bytes(bomb)
    change(folder, lambda index: index["shards"][1]["zip_data"].update(bytes=len(bomb)))
    error, findings = refusal(folder, "mds")
    assert isinstance(error, TooLarge)
    assert name in str(error)
    assert "shard 1" in str(error)
    assert "shard 1" in str(findings[0].found)


def test_frames_without_a_size_and_many_of_them(tmp_path: Path) -> None:
    import zstandard

    folder = make(tmp_path / "set", "csv", compression="zstd", hashes=[])
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 20))
    for bomb in (frame * 300, frame, zstandard.compress(b"") * 1000):
        (folder / "shard.00001.csv.zstd").write_bytes(bomb)
        change(folder, lambda index, bomb=bomb: index["shards"][1]["zip_data"].update(bytes=len(bomb)))
        error, _ = refusal(folder, "csv")
        assert "shard 1" in str(error)


def test_a_bomb_without_an_index_does_not_harm_repair(tmp_path: Path) -> None:
    folder = make(tmp_path / "set", "mds", compression="zstd", hashes=[])
    (folder / "index.json").unlink()
    (folder / "shard.00001.mds.zstd").write_bytes(compress(bytes(1 << 29), Compression("zstd")))
    with bounded():
        (action,) = ps.repair(folder, write=True)
    assert not action.done
    assert "shard.00001.mds.zstd" in action.what


def image_bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that states a size."""
    file = io.BytesIO()
    Image.new("1", (1, 1)).save(file, "PNG")
    head = b"IHDR" + struct.pack(">2I", width, height) + b"\1\0\0\0\0"
    packed = struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    return file.getvalue()[:8] + packed + file.getvalue()[33:]


@pytest.mark.parametrize("encoding", ["png", "jpeg", "list[png]", "jpeg_array"])
def test_an_image_bomb(encoding: str, tmp_path: Path) -> None:
    bomb = image_bomb(40_000, 40_000)
    with ps.create(tmp_path / "set", format="mds", columns={"i": encoding}) as writer:
        writer.write({"i": bomb if encoding in ("png", "jpeg") else [bomb]})
    error, _ = refusal(tmp_path / "set", "mds")
    assert isinstance(error, TooLarge)
    assert "sample 0 of shard 0" in str(error)


def test_raw_images_and_arrays_that_state_more_than_they_hold(tmp_path: Path) -> None:
    values = {
        "i": struct.pack("<3I", 2**31, 2**31, 3) + b"RGB",
        "a": bytes([8, 4 << 2 | 3]) + b"\xff" * 32,
    }
    for name, encoding in (("i", "pil"), ("a", "ndarray")):
        with ps.create(tmp_path / name, format="mds", columns={name: "bytes"}, hashes=[]) as writer:
            writer.write({name: values[name]})
        change(tmp_path / name, lambda index, encoding=encoding: index["shards"][0].update(column_encodings=[encoding]))
        error, _ = refusal(tmp_path / name, "mds")
        assert isinstance(error, Truncated)
        assert "sample 0 of shard 0" in str(error)


# --- code ------------------------------------------------------------------------------------------------------------


class _Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_pickles_run_only_with_trust(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    with ps.create(tmp_path / "set", format="mds", columns={"p": "pkl", "n": "int"}) as writer:
        writer.write({"p": pickle.dumps(_Touch(marker)), "n": 1})
    with pytest.raises(UnsafeData, match="sample 0 of shard 0"):
        ps.open(tmp_path / "set")[0]
    assert ps.open(tmp_path / "set", columns=["n"])[0] == {"n": 1}
    ps.verify(tmp_path / "set", depth="full")
    assert not marker.exists()
    ps.open(tmp_path / "set", trust=True)[0]
    assert marker.exists()


def test_an_encoding_changed_to_pickle_runs_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    with ps.create(tmp_path / "set", format="mds", columns={"p": "bytes"}) as writer:
        writer.write({"p": pickle.dumps(_Touch(marker))})
    change(tmp_path / "set", lambda index: index["shards"][0].update(column_encodings=["pkl"]))
    with pytest.raises(UnsafeData):
        ps.open(tmp_path / "set")[0]
    assert not marker.exists()


# --- anything --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    folder = tmp_path_factory.mktemp("sets")
    made = {form: make(folder / form, form, hashes=["sha1"]) for form in WRITERS}
    return {form: (path, json.loads((path / "index.json").read_text())) for form, path in made.items()}


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=3)
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_in_place_of_any_other(data: st.DataObject, sets: dict[str, tuple[Path, Any]]) -> None:
    form = data.draw(st.sampled_from(sorted(sets)))
    folder, original = sets[form]
    index = copy.deepcopy(original)
    entry = index["shards"][data.draw(st.integers(0, len(index["shards"]) - 1))]
    key = data.draw(st.sampled_from(sorted(entry)))
    if isinstance(entry[key], dict) and data.draw(st.booleans()):
        entry, key = entry[key], data.draw(st.sampled_from(sorted(entry[key])))
    entry[key] = data.draw(JUNK)
    (folder / "index.json").write_text(json.dumps(index))
    with bounded():
        ps.verify(folder, format=form, depth="full")
        error = said(lambda: read_some(folder, form))
    assert error is None or str(error)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_in_place_of_others(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    form = data.draw(st.sampled_from(sorted(WRITERS)))
    folder = make(tmp_path_factory.mktemp("any") / "set", form, hashes=[])
    path = data.draw(st.sampled_from(sorted(folder.glob("shard.*"))))
    size = path.stat().st_size
    junk = data.draw(st.binary(min_size=1, max_size=8))
    overwrite(path, data.draw(st.integers(0, max(0, size - len(junk)))), junk[:size])
    with bounded():
        findings = [one for one in ps.verify(folder, format=form, depth="full") if one.severity == "error"]
        error = said(lambda: read_all(folder, form))
    assert error is None or findings, error


def test_an_array_of_every_byte_is_a_value_or_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    with ps.create(tmp_path / "set", format="mds", columns={"a": "bytes"}, hashes=[]) as writer:
        for _ in range(300):
            writer.write({"a": rng.bytes(int(rng.integers(0, 40)))})
    for encoding in ("ndarray", "ndarray:float64", "str", "json", "jpeg_array", "list[pil]", "pil", "str_decimal"):
        change(tmp_path / "set", lambda index, one=encoding: index["shards"][0].update(column_encodings=[one]))
        source = ps.open(tmp_path / "set")
        for index in range(300):
            error = said(lambda source=source, index=index: source[index])
            assert error is None or f"sample {index} of shard 0" in str(error)
