"""Token files joined by the store that holds their parts: the same files everywhere, and hardly a byte comes here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from tests.shared_work import finish_part
from tests.store.between import Between, between

import penstock as ps
from penstock.check.repairs import write_side_file
from penstock.codec import hashes
from penstock.codec.joined_digest import documents_digest_v2
from penstock.convert import tokens as token_conversion
from penstock.engine import token_blocks
from penstock.engine.parts import DocumentRun, PartMeta, PartName, encode_end
from penstock.engine.token_files import FileJob, FileTask, PartRange, assemble_file
from penstock.formats import _proof
from penstock.formats._manifest import FileDigests
from penstock.formats.tokens import joined
from penstock.prepare.tokens.request import writer_options
from penstock.prepare.tokens.tokenizer import TokenizerSpec
from penstock.store import compose
from penstock.store.cache import CachedStore
from penstock.store.place import Place, place_of
from penstock.store.put import put
from penstock.testing.datasets import files_in

MIB = 1 << 20
DOC_TOKENS = 1 << 12
FORMATS = ("pbin", "megatron")


@pytest.fixture
def s3(s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Between]:
    """An S3 server behind a proxy."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    with between(s3_server) as proxy:
        monkeypatch.setenv("S3_ENDPOINT_URL", proxy.url)
        yield proxy


SPEC = TokenizerSpec("t", "t.json", b"{}", "d" * 32, 65_000, 64_999, "<eos>", 0, False, None, False)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of 64 KiB, where S3 wants 5 MiB; runs of documents with a digest, of which a file has several."""
    monkeypatch.setattr(compose, "LEAST_PART_BYTES", 1 << 16)
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1 << 16)
    monkeypatch.setattr(joined, "RUN_TOKENS", 1 << 18)


def make_parts(folder: Place, num_parts: int, part_tokens: int = 1 << 19) -> tuple[list[PartName], list[np.ndarray]]:
    """Parts as workers make them, of random ids in documents of 4,096; and their documents."""
    chance = np.random.default_rng(num_parts)
    names, documents = list[PartName](), list[np.ndarray]()
    for number in range(num_parts):
        tokens = chance.integers(0, 60_000 + number, part_tokens, dtype="<u2")
        lengths = np.full(part_tokens // DOC_TOKENS, DOC_TOKENS, np.int64)
        rows = tokens.reshape(-1, DOC_TOKENS)
        rows[:, -1] = SPEC.eos_id
        runs = tuple(
            DocumentRun(len(some), int(some.max()), documents_digest_v2(some.reshape(-1), lengths[: len(some)]))
            for some in (rows[first : first + 2] for first in range(0, len(rows), 2))
        )
        meta = PartMeta((), len(lengths), part_tokens, int(tokens.max()), (), runs)
        unnamed = folder.child("unnamed")
        staged = folder.store.stage(unnamed.path)
        staged.write(tokens)
        finish_part(staged, encode_end(lengths, meta))
        data = folder.store.get(unnamed.path)
        folder.store.delete(unnamed.path)
        name = PartName(number, 0, True, len(lengths), part_tokens, 0, xxhash.xxh3_64_hexdigest(data))
        put(folder.store, folder.child(name.path).path, data)
        names.append(name)
        documents += list(rows)
    return names, documents


def assemble(output: Place, parts: Place, names: list[PartName], to: str, cut: int) -> list[Any]:
    """Two token files, of which the first ends in a part, `cut` documents after the first half of all."""
    half = len(names) // 2
    ranges = [PartRange(name, 0, name.documents) for name in names]
    first, second = (PartRange(names[half], *place) for place in ((0, cut), (cut, names[half].documents)))
    job = FileJob(
        output,
        parts,
        output.child("tmp"),
        to,
        SPEC.token_bytes,
        writer_options(to, SPEC, {"inputs": {}, "options": {}}),
    )
    files = [(*ranges[:half], first), (second, *ranges[half + 1 :])]
    return [assemble_file(job, FileTask(number, one)) for number, one in enumerate(files)]


def bare(place: Place) -> Place:
    """Without a cache, as a work folder is."""
    return Place(place.store.remote if isinstance(place.store, CachedStore) else place.store, place.path)


def files_of(place: Place) -> dict[str, bytes]:
    names = list(place.store.list(place.path))
    return {name.removeprefix(place.path + "/"): place.store.get(name) for name in names}


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("to", FORMATS)
def test_hardly_a_byte_comes_here_and_the_files_are_those_of_a_disk(tmp_path: Path, s3: Between, to: str) -> None:
    here = Place(place_of(str(tmp_path)).store, str(tmp_path))
    names, documents = make_parts(here.child("parts"), 8)
    made = assemble(here.child("out"), here.child("parts"), names, to, 5)
    there = bare(place_of(f"s3://bucket/{tmp_path.name}/{to}"))
    make_parts(there.child("parts"), 8)
    total_bytes = 8 << 20
    s3.up_bytes = s3.down_bytes = 0
    far = assemble(there.child("out"), there.child("parts"), names, to, 5)
    # The seams of parts, a run that a file cuts, lengths and the index.
    assert max(s3.up_bytes, s3.down_bytes) < total_bytes / 10
    assert far == made
    copies = [path for method, path, _ in s3.log if method == "PUT" and "partNumber" in path]
    assert len(copies) >= 8
    found = files_in(tmp_path / "out")
    assert files_of(there.child("out")) == found
    rows = [row["tokens"] for one in made for row in ps.open(tmp_path / "out" / one.mark.entry.path)]
    assert len(rows) == len(documents)
    assert all(np.array_equal(*pair) for pair in zip(rows, documents, strict=True))


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("to", FORMATS)
def test_streamed_where_there_is_no_boto3(
    tmp_path: Path, s3: Between, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = bare(place_of(f"s3://bucket/{tmp_path.name}/{to}"))
    names, _ = make_parts(there.child("parts"), 2, 1 << 17)
    copied = assemble(there.child("out"), there.child("parts"), names, to, 3)
    monkeypatch.setattr(compose, "compose", lambda *_, **__: False)
    assert assemble(there.child("streamed"), there.child("parts"), names, to, 3) == copied
    assert files_of(there.child("streamed")) == files_of(there.child("out"))
    again = len(s3.log)
    assert assemble(there.child("streamed"), there.child("parts"), names, to, 3) == copied  # what is there stays
    assert [one for one in s3.log[again:] if one[0] == "DELETE"] == []


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("to", FORMATS)
def test_a_flipped_bit_is_found_and_where(tmp_path: Path, to: str) -> None:
    here = place_of(str(tmp_path))
    names, _ = make_parts(here.child("parts"), 2)
    [_, made] = assemble(here.child("out"), here.child("parts"), names, to, 3)
    path = tmp_path / "out" / made.mark.entry.path
    assert not ps.verify(path, depth="full")
    manifest = ps.open(path).manifest
    assert manifest.digest == made.mark.entry.digest
    assert len(manifest.block_digests["documents"]) == 2
    write_side_file(path)
    assert ps.open(path).manifest.digest == made.mark.entry.digest
    data = bytearray(path.read_bytes())
    data[len(data) // 4] ^= 1
    data[3 * len(data) // 4] ^= 1
    path.write_bytes(data)
    found = [one for one in ps.verify(path, depth="full") if str(one.found).startswith("documents")]
    assert [one.offset_bytes for one in found] == [{"pbin": 12, "megatron": 0}[to], found[-1].offset_bytes]
    assert "documents 0 to" in str(found[0].found)
    assert len(found) == 2
    with pytest.raises(ps.errors.Corrupt, match="contradicts its side file"):
        write_side_file(path)


def test_ids_are_held_against_the_vocabulary(tmp_path: Path) -> None:
    here = place_of(str(tmp_path))
    names, _ = make_parts(here.child("parts"), 1, 1 << 13)
    spec = replace(SPEC, vocab_size=300, max_token_id=299)
    options = writer_options("megatron", spec, {})
    job = FileJob(here.child("out"), here.child("parts"), here.child("tmp"), "megatron", spec.token_bytes, options)
    with pytest.raises(ps.errors.TooLarge, match="does not fit"):
        assemble_file(job, FileTask(0, (PartRange(names[0], 0, 2),)))
    assert "out" not in os.listdir(tmp_path)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("end", [".pbin", ".bin"])
def test_one_file_in_a_bucket_is_joined_there(
    end: str, tmp_path: Path, s3: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shares digest what a side file needs; through the process that commits go neither tokens up nor down."""
    for module in (token_blocks, _proof):
        monkeypatch.setattr(module, "BLOCK_BYTES", 1 << 17)
    for module in (token_blocks, hashes):
        monkeypatch.setattr(module, "BLOCK_TOKENS", 50_000)
    monkeypatch.setitem(FileDigests.__init__.__kwdefaults__, "block_bytes", 1 << 17)  # type: ignore[index]
    monkeypatch.setattr(token_conversion, "TASK_TOKENS", 1 << 17)
    tokens = np.random.default_rng(1).integers(1, 60_000, (256, DOC_TOKENS), np.uint16)
    with ps.create(tmp_path / "in.pbin", format="pbin", token_bytes=2) as writer:
        writer.write_batch({"tokens": list(tokens)})
    ps.convert(tmp_path / "in.pbin", tmp_path / f"local/out{end}", executor="inline")
    output = f"s3://bucket/{tmp_path.name}/out{end}"
    for part in (0, 1, 0, 1):  # the parts, then their digests
        ps.convert(tmp_path / "in.pbin", output, part=(part, 2), executor="inline")
    s3.up_bytes = 0
    ps.convert(tmp_path / "in.pbin", output, finish=True, executor="inline")
    assert s3.up_bytes < tokens.nbytes // 4
    folder = place_of(output).folder()
    made = {name: folder.store.get(folder.child(name).path) for name in folder.names()}
    assert made == files_in(tmp_path / "local")
