"""Groups that mean harm: nothing runs, nothing outside is read, and memory stays within what the files hold."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.internals import FLAT_TOKENS_FORMAT as FORMAT

from penstock.errors import Corrupt, PenstockError
from penstock.store import LocalStore, MemoryStore
from penstock.testing.counting import CountingStore
from penstock.types import Manifest, OpenOptions

DOCUMENTS = [[1, 2], [], [3, 4, 5], [6, 7, 8], [9] * 40]
# A zstd frame may hold 2^15 times its size, and no more is ever believed.
MOST_BYTES_A_BYTE = 1 << 15
FREE_BYTES = 8 << 20


def group(**options: Any) -> dict[str, bytes]:
    """The files of a sound group."""
    store = MemoryStore()
    chosen = {"chunk_tokens": 8, "chunk_starts": 4} | options
    with FORMAT.create(store, "g", chosen, overwrite=False) as writer:
        for document in DOCUMENTS:
            writer.write({"tokens": np.array(document)})
    return store.files


LAYOUTS: list[dict[str, Any]] = [
    {},
    {"compressor": "blosc", "chunk_tokens": 32},
    {"compressor": "seqax", "chunk_tokens": 16},
    {"compressor": "zstd"},
    {"zarr_format": 3, "chunk_tokens": 4, "shard_tokens": 16},
    {"zarr_format": 3, "compressor": "blosc", "chunk_tokens": 4, "shard_tokens": 16},
]
GROUPS = [group(**options) for options in LAYOUTS]


def attempt(files: dict[str, bytes], *, free_bytes: int = FREE_BYTES) -> PenstockError | None:
    """Read, check and repair everything; gives the refusal, fails on any other error and on too much memory."""
    store = MemoryStore(files)
    refusal: PenstockError | None = None
    tracemalloc.start()
    try:
        for read in ("mmap", "pread"):
            try:
                source = FORMAT.open(store, "g", OpenOptions(read=read))  # type: ignore[arg-type]
                for index in range(min(len(source), 100)):
                    source[index]
                source.tokens(0, source.num_tokens)
                source.gather(np.zeros(3, np.int64), min(source.num_tokens, 9))
                _ = source.fingerprint
                _ = source.doc_starts
            except PenstockError as error:
                refusal = error
        findings = FORMAT.check(store, "g", OpenOptions(eos_id=9, vocab_size=100), "full")
        FORMAT.repair(store, "g", OpenOptions(), findings, write=False)
        FORMAT.sniff(store, "g")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    held = sum(map(len, files.values()))
    assert peak_bytes <= min(MOST_BYTES_A_BYTE * held, free_bytes + 64 * held)
    assert refusal is None or any(one.severity == "error" for one in findings), refusal
    return refusal


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.integers(0, len(GROUPS) - 1), st.data())
def test_any_change_of_any_file(which: int, data: st.DataObject) -> None:
    files = dict(GROUPS[which])
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(sorted(files)))
        content = bytearray(files[name])
        kind = data.draw(st.sampled_from(["flip", "cut", "grow", "drop", "number"]))
        if kind == "drop":
            files.pop(name)
            continue
        place = data.draw(st.integers(0, max(len(content) - 1, 0)))
        if kind == "flip" and content:
            content[place] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "cut":
            del content[place:]
        elif kind == "grow":
            content[place:place] = data.draw(st.binary(max_size=20))
        elif kind == "number":
            content[place : place + 8] = data.draw(st.integers(0, (1 << 64) - 1)).to_bytes(8, "little")
        files[name] = bytes(content)
    files.setdefault("g/.keep", b"")
    attempt(files)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.integers(0, len(GROUPS) - 1), st.data())
def test_any_value_in_the_metadata(which: int, data: st.DataObject) -> None:
    files = dict(GROUPS[which])
    name = data.draw(st.sampled_from([one for one in sorted(files) if not one.rpartition("/")[2].isdigit()]))
    if name.endswith(".penstock"):
        return
    fields = json.loads(files[name])
    key = data.draw(st.sampled_from(sorted(fields)))
    wild = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-5, 1 << 66),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=5),
        st.lists(st.one_of(st.integers(-1, 1 << 62), st.text(max_size=3)), max_size=3),
        st.dictionaries(st.sampled_from(["id", "name", "configuration", "chunk_shape"]), st.integers(0, 9), max_size=2),
    )
    fields[key] = data.draw(wild)
    files[name] = json.dumps(fields).encode()
    attempt(files)


@pytest.mark.parametrize(("shape", "chunk"), [(1 << 58, 8), (1 << 58, 1), (1 << 40, 1 << 40)])
@pytest.mark.parametrize("which", range(len(GROUPS)))
def test_claims_beyond_the_files(which: int, shape: int, chunk: int) -> None:
    files = dict(GROUPS[which])
    for array in ("encoded_tokens", "seq_starts"):
        name = next(one for one in files if one.startswith(f"g/{array}/") and one.endswith((".zarray", "zarr.json")))
        fields = json.loads(files[name])
        fields["shape"] = [shape]
        if "chunks" in fields:
            fields["chunks"] = [chunk]
        else:
            fields["chunk_grid"]["configuration"]["chunk_shape"] = [chunk]
        assert attempt(files | {name: json.dumps(fields).encode()}, free_bytes=32 << 20) is not None


def test_bombs() -> None:
    """Compressed chunks that would hold gigabytes."""
    for frame in (
        zstandard.compress(bytes(1 << 28)),
        zstd_without_a_size(1 << 28),
        bytes([2, 1, 0x21, 4]) + (1 << 30).to_bytes(4, "little") * 2 + (20).to_bytes(4, "little") + bytes(4),
    ):
        for which in (1, 3):
            files = dict(GROUPS[which])
            for name in files:
                if name.rpartition("/")[2].isdigit():
                    files[name] = frame
            assert attempt(files) is not None


def zstd_without_a_size(num_bytes: int) -> bytes:
    writer = zstandard.ZstdCompressor().compressobj()
    return writer.compress(bytes(num_bytes)) + writer.flush()


def test_blosc_frames_that_point_anywhere() -> None:
    rng = np.random.default_rng(0)
    files = dict(GROUPS[1])
    whole = files["g/encoded_tokens/0"]
    for _ in range(100):
        frame = bytearray(whole)
        for place in rng.integers(0, len(frame), 3):
            frame[place] = rng.integers(0, 256)
        files["g/encoded_tokens/0"] = bytes(frame)
        attempt(files)


def test_shard_indexes_that_point_anywhere() -> None:
    from tests.internals import crc32c

    rng = np.random.default_rng(0)
    for which in (4, 5):
        files = dict(GROUPS[which])
        whole = files["g/encoded_tokens/c/0"]
        for _ in range(60):
            table = np.frombuffer(whole[-68:-4], "<u8").copy()
            values = (0, 1, 3, 16, 1 << 20, 1 << 62, (1 << 64) - 1, (1 << 64) - 16)
            table[rng.integers(0, 8)] = values[rng.integers(0, len(values))]
            data = table.tobytes()
            files["g/encoded_tokens/c/0"] = whole[:-68] + data + crc32c(data).to_bytes(4, "little")
            attempt(files)


def test_a_side_file_reads_nothing_outside_the_group(tmp_path: Path) -> None:
    from tests.internals import encode_manifest

    (tmp_path / "secret").write_bytes(b"secret")
    with FORMAT.create(LocalStore(), str(tmp_path / "g"), {"chunk_tokens": 8}, overwrite=False) as writer:
        writer.write({"tokens": [1]})
    names = ("../secret", "/etc/passwd", "encoded_tokens/../../secret", "seq_starts/../../secret")
    manifest = Manifest("flat-tokens", 1, 1, num_tokens=1, block_digests=dict.fromkeys(names, ("0",)))
    (tmp_path / "g.penstock").write_bytes(encode_manifest(manifest))

    class Watched(CountingStore):
        def get(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> bytes:
            assert "secret" not in path
            assert "passwd" not in path
            return super().get(path, start_bytes, length_bytes)

    findings = FORMAT.check(Watched(LocalStore()), str(tmp_path / "g"), OpenOptions(), "full")
    named = ["flat-tokens.side-file"] * len(names)  # none of them is a file of the group
    assert [one.code for one in findings] == ["flat-tokens.changed", *named, "flat-tokens.changed"]


def test_codecs_that_would_run_code_are_not_asked(tmp_path: Path) -> None:
    """A pickle codec is known to numcodecs; nothing here decodes with what a file names freely."""
    for codec in ({"id": "pickle"}, {"id": "json2"}, {"id": "msgpack2"}):
        files = dict(GROUPS[0])
        fields = json.loads(files["g/encoded_tokens/.zarray"])
        for key, value in (("compressor", codec), ("filters", [codec])):
            files["g/encoded_tokens/.zarray"] = json.dumps(fields | {key: value}).encode()
            path = tmp_path / f"{codec['id']}-{key}"
            for name, data in files.items():
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                (path / name).write_bytes(data)
            (path / "g" / "encoded_tokens" / "0").write_bytes(
                b"cos\nsystem\n(S'touch " + str(path).encode() + b"/ran'\ntR."
            )
            with pytest.raises(PenstockError):
                FORMAT.open(LocalStore(), str(path / "g"), OpenOptions()).tokens(0, 8)
            FORMAT.check(LocalStore(), str(path / "g"), OpenOptions(), "full")
            assert not (path / "ran").exists()


def test_deeply_nested_json() -> None:
    files = dict(GROUPS[0])
    for name in ("g/.zattrs", "g/.zgroup", "g/encoded_tokens/.zarray"):
        with pytest.raises(Corrupt):
            FORMAT.open(MemoryStore(files | {name: b"[" * 200_000}), "g", OpenOptions())
    assert attempt(files | {"g.penstock": b'{"parts":' * 100_000}) is None
