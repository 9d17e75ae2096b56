"""`verify` is a verdict: data that are not those of their side file are errors, in every format, with their place."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from tests.internals import decode_manifest, encode_manifest, hash_blocks, main, replace, waiting_name, write_side_file

import penstock as ps
from penstock.errors import Corrupt
from penstock.testing.datasets import files_in
from penstock.testing.token_files import write_token_files
from penstock.types import Depth, Finding

Change = Callable[[Path], None]
NAMES = {
    "pbin": "set.pbin",
    "megatron": "set",
    "flat-tokens": "set.zarr",
    "jsonl": "set.jsonl",
    "mds": "set",
    "csv": "set",
    "webdataset": "set",
    "folder": "set",
}
TOKENS, ROWS, TARS = ("pbin", "megatron", "flat-tokens"), ("mds", "csv"), ("webdataset", "folder")


def make(folder: Path, format: str, count: int = 40) -> Path:
    """A dataset of several files, where the format knows such."""
    path = folder / NAMES[format]
    options = {
        "pbin": {"token_bytes": 2},
        "megatron": {"token_bytes": 2},
        "flat-tokens": {"chunk_tokens": 256, "compressor": None},
        "mds": {"columns": {"id": "int", "text": "str"}, "size_limit": 250},
        "csv": {"columns": {"id": "int", "text": "str"}, "size_limit": 120},
        "webdataset": {"maxcount": 5},
    }.get(format, {})
    with ps.create(path, format=format, **options) as writer:
        for number in range(count):
            if format in TOKENS:
                writer.write({"tokens": np.array([*range(number, number + 600), 0], np.uint16)})
            elif format in TARS:
                writer.write({"__key__": f"{number:03d}", "txt": f"text {number % 10} of it"})
            else:
                writer.write({"id": number, "text": f"text {number % 10} of it"})
    return path


def data_file(path: Path, format: str, number: int = 1) -> Path:
    """The `number`-th of the files that hold samples."""
    if format in ("pbin", "jsonl"):
        return path
    if format == "megatron":
        return path.with_name("set.bin")
    patterns = {"flat-tokens": "encoded_tokens/[0-9]*", "webdataset": "*.tar", "folder": "*.txt"}
    return sorted(path.glob(patterns.get(format, f"*.{format}")))[number]


def verdict(path: Path, format: str, depth: Depth = "full") -> list[Finding]:
    return [one for one in ps.verify(path, format=format, depth=depth) if one.severity == "error"]


def grown(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n{}\n  ")


def inserted(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + b"\0\1" + data[len(data) // 2 :])


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 2
    path.write_bytes(data)


@pytest.mark.parametrize("change", [grown, inserted, cut, flipped])
@pytest.mark.parametrize("format", NAMES)
def test_a_changed_file_is_an_error_with_its_place(tmp_path: Path, format: str, change: Change) -> None:
    path = make(tmp_path, format)
    assert ps.verify(path, format=format, depth="full") == []
    file = data_file(path, format)
    change(file)
    found = verdict(path, format)
    assert any(str(file) in one.path for one in found), found


@pytest.mark.parametrize("change", [grown, cut])
@pytest.mark.parametrize("format", ["pbin", "megatron", "jsonl"])
def test_another_size_is_found_at_once(tmp_path: Path, format: str, change: Change) -> None:
    path = make(tmp_path, format)
    change(data_file(path, format))
    assert verdict(path, format, "quick")


@pytest.mark.parametrize("format", ["flat-tokens", "mds", "csv", "webdataset", "folder"])
def test_swapped_and_two_damaged_files(tmp_path: Path, format: str) -> None:
    path = make(tmp_path, format)
    first, second = (data_file(path, format, number) for number in (2, 3))
    whole = first.read_bytes(), second.read_bytes()
    assert whole[0] != whole[1]
    first.write_bytes(whole[1])
    second.write_bytes(whole[0])
    found = {one.path for one in verdict(path, format)}
    assert {str(first), str(second)} <= found
    for file, data in zip((first, second), whole, strict=True):
        file.write_bytes(data)
        flipped(file)
    found = {one.path for one in verdict(path, format)}
    assert {str(first), str(second)} <= found


@pytest.mark.parametrize("format", NAMES)
def test_the_side_file_of_other_data_and_a_damaged_one(tmp_path: Path, format: str) -> None:
    path = make(tmp_path / "a", format)
    other = make(tmp_path / "b", format, 30)
    [side] = [name for name in files_in(tmp_path / "a") if name.endswith(".penstock")]
    shutil.copy(tmp_path / "b" / side, tmp_path / "a" / side)
    assert verdict(path, format, "quick")
    # Two damaged at once: what proves the data is not readable, so they are not proved.
    (tmp_path / "a" / side).write_bytes(b"{")
    flipped(data_file(path, format))
    assert any(one.path == str(tmp_path / "a" / side) for one in verdict(path, format, "quick"))
    assert verdict(other, format) == []


@pytest.mark.parametrize("format", NAMES)
def test_a_side_file_of_more_samples_than_there_are(tmp_path: Path, format: str) -> None:
    path = make(tmp_path, format)
    [side] = [tmp_path / name for name in files_in(tmp_path) if name.endswith(".penstock")]
    told = json.loads(side.read_bytes())
    side.write_text(json.dumps(told | {"num_samples": 10**15}))
    source = ps.open(path, format=format)
    assert len(source) == 40
    assert source[39]
    with pytest.raises(IndexError):
        source[40]
    assert verdict(path, format, "quick")


def test_a_packed_file_whose_side_file_counts_others_never_answers_wrong(tmp_path: Path) -> None:
    path = make(tmp_path, "pbin")
    side = tmp_path / "set.pbin.penstock"
    side.write_bytes(side.read_bytes().replace(b'"num_samples": 40', b'"num_samples": 41'))
    source = ps.open(path)
    assert len(source) == 41  # the index is not read for this
    with pytest.raises(Corrupt, match="41 in the side file"):
        source[40]
    assert ps.open(path).tokens(0, 3).tolist() == [0, 1, 2]  # type: ignore[attr-defined]
    assert write_side_file(path, replace=True) == str(side)
    assert len(ps.open(path)) == 40


@pytest.mark.parametrize("format", NAMES)
def test_what_contradicts_is_blessed_only_by_name(
    tmp_path: Path, format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make(tmp_path, format)

    def run(*words: str) -> int | str | None:
        with pytest.raises(SystemExit) as ended:
            main(["verify", str(path), "--format", format, *words])
        return ended.value.code

    assert run("--write-manifest") == 0
    [side] = [tmp_path / name for name in files_in(tmp_path) if name.endswith(".penstock")]
    before = json.loads(side.read_bytes())
    digests = {name: ("0" * 32,) * len(found) for name, found in before["block_digests"].items()}
    assert digests
    told = decode_manifest(side.read_bytes())
    assert told is not None
    side.write_bytes(encode_manifest(dataclasses.replace(told, block_digests=digests)))  # as if every byte had changed
    with pytest.raises(Corrupt, match="--replace-manifest"):
        write_side_file(path, format=format)
    capsys.readouterr()
    assert run("--depth", "quick", "--write-manifest") not in (0, 1)
    assert "--replace-manifest" in capsys.readouterr().err
    assert run("--depth", "full") == 1
    assert "--replace-manifest" in capsys.readouterr().out
    assert run("--depth", "full", "--replace-manifest") == 0
    assert run("--depth", "full") == 0
    assert json.loads(side.read_bytes())["block_digests"] == before["block_digests"]


@pytest.mark.parametrize("format", NAMES)
def test_a_damaged_side_file_proves_nothing(tmp_path: Path, format: str) -> None:
    """One bit makes `block_digests` a key that nobody knows: then no byte of the data would be looked at."""
    path = make(tmp_path, format)
    [side] = [tmp_path / name for name in files_in(tmp_path) if name.endswith(".penstock")]
    whole = side.read_bytes()
    for old, new in [
        (b'"block_digests"', b'"clock_digests"'),
        (b'"tool": "penstock', b'"tool": "qenstock'),
        (b'"check"', b'"cheek"'),
        (b"\n}\n", b"\n} \n"),
    ]:
        assert old in whole
        side.write_bytes(whole.replace(old, new))
        assert [one.path for one in verdict(path, format, "quick")] == [str(side)]
    told = {name: value for name, value in json.loads(whole).items() if name != "check"}
    side.write_text(json.dumps(told))  # as one of an older version has it
    assert verdict(path, format) == []


def without_index(path: Path, format: str) -> None:
    """Damages what `repair` makes again."""
    if format == "pbin":
        path.write_bytes(path.read_bytes()[:-40])
    elif format == "megatron":
        path.with_name("set.idx").unlink()
    elif format == "flat-tokens":
        for file in (path / "seq_starts").glob("[0-9]*"):
            file.write_bytes(b"")
    else:
        (path / "index.json").unlink()


@pytest.mark.parametrize("index", ["sound", "lost"])
@pytest.mark.parametrize("format", [*TOKENS, *ROWS])
def test_repair_makes_no_new_side_file_for_other_data(tmp_path: Path, format: str, index: str) -> None:
    path = make(tmp_path, format)
    [side] = [tmp_path / name for name in files_in(tmp_path) if name.endswith(".penstock")]
    proof = side.read_bytes()
    flipped(data_file(path, format))
    if index == "lost":
        without_index(path, format)
    before = files_in(tmp_path)
    for action in ps.repair(path, format=format, write=True, **({"eos_id": 0} if format in TOKENS else {})):
        assert (action.done, action.possible) == (False, False)
    assert files_in(tmp_path) == before
    assert side.read_bytes() == proof
    assert verdict(path, format)


@pytest.mark.parametrize("format", [*TOKENS, "mds"])
def test_repair_brings_back_an_index_whose_side_file_proves_it(tmp_path: Path, format: str) -> None:
    path = tmp_path / NAMES[format]
    options = {"columns": {"tokens": "ndarray"}} if format in ROWS else {"token_bytes": 2, "eos_id": 0}
    with ps.create(path, format=format, **options) as writer:
        for number in range(40):
            writer.write({"tokens": np.array([*range(1, number + 2), 0], np.uint16)})
    without_index(path, format)
    assert any(one.done for one in ps.repair(path, format=format, write=True))
    assert ps.verify(path, format=format, depth="full") == []
    assert len(ps.open(path, format=format)) == 40


def test_repair_names_shards_that_the_side_file_knows(tmp_path: Path) -> None:
    path = make(tmp_path, "mds")
    last = sorted(path.glob("*.mds"))[-1]
    last.unlink()
    (path / "index.json").unlink()
    [action] = ps.repair(path, format="mds")
    assert f"missing, with their samples: {last.name}" in action.what


@pytest.mark.parametrize("length", [0, 2, 600, 1 << 20, 1 << 62])
def test_repair_of_a_packed_file_with_a_wrong_length_brings_back_the_file(tmp_path: Path, length: int) -> None:
    path = make(tmp_path, "pbin")
    whole = path.read_bytes()
    path.write_bytes(length.to_bytes(8, "little") + whole[8:])
    assert verdict(path, "pbin", "quick")
    [action] = ps.repair(path, write=True, eos_id=0)
    assert "set the data length" in action.what
    assert path.read_bytes() == whole
    assert verdict(path, "pbin") == []


def resealed(side: Path, **changes: object) -> None:
    """The side file says other things, with a `check` that is right."""
    told = decode_manifest(side.read_bytes())
    assert told is not None
    side.write_bytes(encode_manifest(dataclasses.replace(told, **changes)))


def renamed(digests: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {f"no-{name}": value for name, value in digests.items()}


def shorter(digests: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(digests, ())


@pytest.mark.parametrize("change", [renamed, shorter])
@pytest.mark.parametrize("format", NAMES)
def test_digests_that_prove_no_file_are_an_error(
    tmp_path: Path, format: str, change: Callable[[Mapping[str, tuple[str, ...]]], dict[str, tuple[str, ...]]]
) -> None:
    path = make(tmp_path, format)
    [side] = [tmp_path / name for name in files_in(tmp_path) if name.endswith(".penstock")]
    told = decode_manifest(side.read_bytes())
    assert told is not None
    resealed(side, block_digests=change(told.block_digests))
    assert verdict(path, format)


@pytest.mark.parametrize("format", NAMES)
def test_what_a_side_file_says_of_the_whole_is_held_against_the_data(tmp_path: Path, format: str) -> None:
    path = make(tmp_path, format)
    [side] = [tmp_path / name for name in files_in(tmp_path) if name.endswith(".penstock")]
    whole = side.read_bytes()
    told = decode_manifest(whole)
    assert told is not None
    changes: list[dict[str, object]] = [{"size_bytes": told.size_bytes + 1}, {"num_samples": told.num_samples + 1}]
    if format in TOKENS:
        changes += [{"num_tokens": told.num_tokens + 1}, {"digest": "0" * 32}]  # type: ignore[operator]
        changes += [{"digest": f"2:{'0' * 32}:40"}, {"max_token_id": 5}, {"max_token_id": 60000}]
    for change in changes:
        resealed(side, **change)
        assert verdict(path, format), change
    side.write_bytes(whole)
    assert ps.verify(path, format=format, depth="full") == []


@pytest.mark.parametrize("format", ["pbin", "megatron", "flat-tokens"])
def test_the_side_file_of_a_folder_of_token_files_too(tmp_path: Path, format: str) -> None:
    path = write_token_files(tmp_path / "set", [[[1, 2, 3], [4]], [[5, 6]]], format)
    side = path / ".penstock"
    whole = side.read_bytes()
    assert verdict(path, "token-files") == []
    told = decode_manifest(whole)
    assert told is not None
    for change in (
        {"size_bytes": told.size_bytes + 1},
        {"digest": f"2:{'0' * 32}:3"},
        {"max_token_id": 7},
        {"block_digests": {"data": ("0" * 32,)}},
    ):
        resealed(side, **change)
        assert verdict(path, "token-files"), change
    assert write_side_file(path, format="token-files", replace=True) == str(side)
    assert side.read_bytes() == whole


def test_a_side_file_of_tars_that_can_not_be_opened(tmp_path: Path) -> None:
    """It was passed over as one of shards that are missing."""
    path = make(tmp_path, "webdataset")
    side = path / ".penstock"
    side.rename(tmp_path / "elsewhere")
    side.symlink_to(tmp_path / "elsewhere")
    assert [one.code for one in verdict(path, "webdataset", "quick")] == ["webdataset.unsafe"]


def test_a_waiting_side_file_is_no_sample_of_a_folder(tmp_path: Path) -> None:
    path = make(tmp_path, "folder")
    shutil.copy(path / ".penstock", waiting_name(path / ".penstock"))
    assert len(ps.open(path, format="folder")) == 40
    assert ps.verify(path, format="folder", depth="full") == []


def of_documents(tmp_path: Path, format: str) -> Path:
    """40 documents that end in 0."""
    path = tmp_path / NAMES[format]
    options = {"columns": {"id": "int"}, "size_limit": 100} if format in ROWS else {"token_bytes": 2, "eos_id": 0}
    with ps.create(path, format=format, **options) as writer:
        for number in range(40):
            document = np.array([*range(number + 1, 0, -1), 0], np.uint16)
            writer.write({"id": number} if format in ROWS else {"tokens": document})
    return path


@pytest.mark.parametrize("format", ["pbin", "megatron", "mds"])
def test_repair_keeps_the_side_file_that_tells_what_was_lost(tmp_path: Path, format: str) -> None:
    path = of_documents(tmp_path, format)
    [side] = [tmp_path / name for name in files_in(tmp_path) if name.endswith(".penstock")]
    proof = side.read_bytes()
    if format == "mds":
        sorted(path.glob("*.mds"))[-1].unlink()
        (path / "index.json").unlink()
    else:
        data = data_file(path, format)
        os.truncate(data, data.stat().st_size // 2)
    [told] = ps.repair(path, format=format)
    counts = "40 samples" if format == "mds" else "40 documents with 860 tokens"
    assert told.what.endswith(f"; the old side file counts {counts}")
    [action] = ps.repair(path, format=format, write=True)
    kept = side.with_name(f"{side.name}.bak")
    assert action.what.endswith(f"; the old side file counts {counts}, and is kept as {kept}")
    assert kept.read_bytes() == proof
    assert 0 < len(ps.open(path, format=format)) < 40
    assert ps.repair(path, format=format, write=True) == []


def test_repair_of_flat_tokens_keeps_the_side_file_that_counts_empty_sequences(tmp_path: Path) -> None:
    path = tmp_path / "set.zarr"
    with ps.create(path, format="flat-tokens") as writer:
        for number in range(40):
            writer.write({"tokens": np.arange(number % 4, dtype=np.uint16)})
    without_index(path, "flat-tokens")
    told = ps.repair(path, format="flat-tokens")[0].what
    assert told.endswith("30 sequences; the old side file counts 40 sequences")
    assert "is kept as" in ps.repair(path, format="flat-tokens", write=True)[0].what
    assert (tmp_path / "set.zarr.penstock.bak").is_file()


def test_repair_does_not_take_documents_without_an_end_for_whole_ones(tmp_path: Path) -> None:
    path = of_documents(tmp_path, "megatron")
    data = data_file(path, "megatron")
    whole = data.read_bytes()
    data.write_bytes(whole[:400] + whole[408:])  # all later tokens are shifted; the last document alone looks cut
    before = files_in(tmp_path), (tmp_path / "set.idx.penstock").read_bytes()
    [action] = ps.repair(path, format="megatron", write=True)
    assert not action.possible
    assert "differs from" in action.what
    assert (files_in(tmp_path), (tmp_path / "set.idx.penstock").read_bytes()) == before


@pytest.mark.parametrize("format", ["pbin", "megatron"])
def test_repair_of_a_cut_file_holds_its_blocks_against_the_side_file(
    tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = of_documents(tmp_path, format)
    data = data_file(path, format)
    [side] = [tmp_path / name for name in files_in(tmp_path) if name.endswith(".penstock")]
    blocks = [hash_blocks(np.frombuffer(data.read_bytes(), np.uint8), 256)]
    resealed(side, block_digests={"data": blocks[0]})
    replace(monkeypatch, "checked_block_bytes", 256)
    replace(monkeypatch, "hash_blocks", lambda block: hash_blocks(block, 256))
    whole = bytearray(data.read_bytes())
    cut = bytes(whole[: len(whole) // 2])
    whole[300] ^= 1 << 4
    data.write_bytes(bytes(whole[: len(whole) // 2]))
    [action] = ps.repair(path, format=format, write=True)
    assert not action.possible
    data.write_bytes(cut)
    [action] = ps.repair(path, format=format, write=True)
    assert action.done


def test_repair_takes_the_index_that_the_side_file_proves(tmp_path: Path) -> None:
    path = of_documents(tmp_path, "megatron")
    index = tmp_path / "set.idx"
    whole = index.read_bytes()
    index.write_bytes(whole[:34] + (1 << 20).to_bytes(4, "little") + whole[38:])  # the first length alone
    [action] = ps.repair(path, format="megatron", write=True)
    assert action.done
    assert index.read_bytes() == whole
    assert verdict(path, "megatron") == []
    assert not (tmp_path / "set.idx.penstock.bak").exists()


def test_repair_leaves_tokens_of_other_bytes_alone_whatever_the_index(tmp_path: Path) -> None:
    path = of_documents(tmp_path, "megatron")
    index = tmp_path / "set.idx"
    whole = index.read_bytes()
    index.write_bytes(whole[:34] + (1 << 20).to_bytes(4, "little") + whole[38:])
    flipped(data_file(path, "megatron"))
    [action] = ps.repair(path, format="megatron", write=True)
    assert not action.possible


def test_repair_of_flat_tokens_leaves_them_alone_where_they_are_read_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "set.zarr"
    with ps.create(path, format="flat-tokens") as writer:
        writer.write({"tokens": np.arange(1, 600, dtype=np.uint16)})
    meta = path / "encoded_tokens/.zarray"
    meta.write_text(meta.read_text().replace("599", "699"))  # 100 more, of which no chunk has anything
    [action] = ps.repair(path, format="flat-tokens", write=True)
    assert not action.possible
    assert verdict(path, "flat-tokens")
