"""`verify`: each fault is found at its place, by the depth that reads it, and listed a bounded number of times."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import FLAT_TOKENS_FORMAT as FORMAT
from tests.internals import current

from penstock.errors import ConfigError, NotFound
from penstock.store import LocalStore
from penstock.testing.datasets import files_in
from penstock.types import OpenOptions

from .conftest import checked, codes, make

LONG = [[7] * 30, *([5] for _ in range(60)), [3] * 40]


def poke(path: Path, place: int, value: int, dtype: str = "<u4") -> None:
    """Change one item of a chunk file."""
    items = np.fromfile(path, dtype)
    items[place] = value
    items.tofile(path)


def without_side_file(path: Path) -> Path:
    Path(f"{path}.penstock").unlink()
    return path


@pytest.mark.parametrize("options", [{}, {"compressor": "blosc"}, {"zarr_format": 3, "shard_tokens": 8}])
def test_bits_and_ids(tmp_path: Path, options: dict[str, Any]) -> None:
    path = without_side_file(make(tmp_path / "a.zarr", [[1, 2], [3, 4, 5], [6]], **options))
    assert codes(path) == []
    if options:
        return
    poke(path / "encoded_tokens" / "0", 1, 5)
    (extra,) = checked(path)
    assert (extra.code, extra.offset_bytes) == ("flat-tokens.first_bit.clear_elsewhere", 4)
    assert extra.path == str(path / "encoded_tokens" / "0")
    poke(path / "encoded_tokens" / "0", 1, 4)
    poke(path / "encoded_tokens" / "0", 2, 6)
    poke(path / "encoded_tokens" / "1", 1, 2 * 77 + 1)
    assert codes(path) == ["first_bit.set_at_starts", "max_token_id.covers"]
    assert codes(path, "quick") == []


def test_only_some_are_listed(tmp_path: Path) -> None:
    path = without_side_file(make(tmp_path / "a.zarr", LONG, chunk_tokens=1000, chunk_starts=1000))
    items = np.fromfile(path / "encoded_tokens" / "0", "<u4")
    (items & ~np.uint32(1)).tofile(path / "encoded_tokens" / "0")
    found = checked(path)
    assert [one.code for one in found] == ["flat-tokens.first_bit.set_at_starts"] * (
        current("flat_tokens_most_findings") + 1
    )
    assert "42 more tokens" in str(found[-1].found)


def test_sampling_reads_some_chunks(tmp_path: Path) -> None:
    path = without_side_file(make(tmp_path / "a.zarr", LONG))
    poke(path / "encoded_tokens" / "1", 0, 2 * 99)
    assert codes(path, "quick") == []
    assert codes(path, "sample") == []
    assert codes(path, "full") == ["max_token_id.covers"]
    poke(path / "encoded_tokens" / "0", 1, 2 * 99)
    assert codes(path, "sample") == ["max_token_id.covers"]


def test_missing_chunks(tmp_path: Path) -> None:
    path = make(tmp_path / "a.zarr", [[0] * 20, [1] * 3])
    (path / "encoded_tokens" / "2").unlink()
    assert codes(without_side_file(path)) == ["chunk.present"]
    (path / "encoded_tokens" / "0").unlink()
    found = checked(path, "quick")
    assert [one.code for one in found] == ["flat-tokens.chunk.present"] * 2
    assert found[0].path == str(path / "encoded_tokens" / "0")
    strict = make(tmp_path / "b.zarr", LONG, compressor="seqax")
    for number in range(30):
        (strict / "encoded_tokens" / str(number)).unlink()
    found = checked(without_side_file(strict), "quick")
    assert [one.code for one in found] == ["flat-tokens.chunk.present"] * (current("flat_tokens_most_findings") + 1)
    assert found[0].path == str(strict / "encoded_tokens" / "0")
    assert "10 more" in str(found[-1].found)


def test_metadata_of_a_gigantic_array_take_no_time(tmp_path: Path) -> None:
    path = without_side_file(make(tmp_path / "a.zarr"))
    where = path / "encoded_tokens" / ".zarray"
    fields = json.loads(where.read_text())
    where.write_text(json.dumps(fields | {"shape": [1 << 58]}))
    assert codes(path)[:2] == ["seq_starts.last_equals_token_count", "chunk.present"]
    where.write_text(json.dumps(fields | {"shape": [1 << 58], "fill_value": None}))
    assert codes(path)[:2] == ["seq_starts.last_equals_token_count", "chunk.present"]
    where = path / "seq_starts" / ".zarray"
    where.write_text(json.dumps(json.loads(where.read_text()) | {"shape": [1 << 58]}))
    assert "chunk.present" in codes(path)


def test_sizes_of_raw_chunks(tmp_path: Path) -> None:
    path = without_side_file(make(tmp_path / "a.zarr", LONG))
    (path / "encoded_tokens" / "3").write_bytes(b"\0" * 15)
    (path / "encoded_tokens" / "5").write_bytes(b"\0" * 17)
    found = checked(path, "quick")
    assert [(one.code, one.offset_bytes) for one in found] == [
        ("flat-tokens.chunk.size", 15),
        ("flat-tokens.chunk.size", 16),
    ]
    assert [one.code for one in checked(path)].count("flat-tokens.chunk.size") == 2


@pytest.mark.parametrize("compressor", ["blosc", "zstd"])
def test_a_chunk_that_fails_to_decode_names_its_file(tmp_path: Path, compressor: str) -> None:
    path = without_side_file(make(tmp_path / "a.zarr", [list(range(300))], compressor=compressor, chunk_tokens=100))
    file = path / "encoded_tokens" / "1"
    file.write_bytes(file.read_bytes()[:-9])
    (found,) = checked(path)
    assert (found.code, found.path) == ("flat-tokens.chunk.decode", str(file))
    file = path / "seq_starts" / "0"
    file.write_bytes(b"damaged")
    assert "chunk.decode" in codes(path, "quick")


def test_checksums_of_chunks_and_shards(tmp_path: Path) -> None:
    import zarr

    path = without_side_file(
        make(tmp_path / "a.zarr", [[1, 2, 3, 4, 5]], zarr_format=3, chunk_tokens=2, shard_tokens=4)
    )
    file = path / "encoded_tokens" / "c" / "0"
    whole = bytearray(file.read_bytes())
    whole[-6] ^= 1
    file.write_bytes(whole)
    assert codes(path) == ["shard.index_crc"]
    shutil.rmtree(path / "encoded_tokens")
    array = zarr.create_array(
        str(path / "encoded_tokens"),
        **{"shape": (5,), "chunks": (4,), "dtype": "uint32", "zarr_format": 3},
        compressors=[zarr.codecs.Crc32cCodec()],
    )
    array[:] = [3, 4, 6, 8, 10]
    assert codes(path) == []
    whole = bytearray((path / "encoded_tokens" / "c" / "0").read_bytes())
    whole[4] ^= 0x40
    (path / "encoded_tokens" / "c" / "0").write_bytes(whole)
    assert codes(path) == ["chunk.crc"]
    assert codes(path, "quick") == []


def test_datasets(tmp_path: Path) -> None:
    path = make(tmp_path / "set.zarr", split="validation")
    (found,) = checked(path)
    assert (found.code, found.severity) == ("flat-tokens.dataset.splits", "error")
    assert "train" in str(found.found)
    assert checked(path, split="validation") == []
    make(path, split="train")
    assert checked(path) == []
    poke(path / "train" / "encoded_tokens" / "0", 0, 2)
    assert {one.path for one in checked(path)} == {str(path / "train" / "encoded_tokens" / "0"), str(path / "train")}
    with pytest.raises(NotFound):
        checked(path, split="test")
    with pytest.raises(ConfigError):
        checked(make(tmp_path / "single.zarr"), split="train")


def test_vocabulary_and_eos(tmp_path: Path) -> None:
    path = make(tmp_path / "a.zarr", [[1, 7], [], [2, 7], [3]])
    assert [one.code for one in checked(path, vocab_size=7)] == ["flat-tokens.token-range"]
    assert checked(path, vocab_size=8) == []
    (found,) = checked(path, eos_id=7)
    assert found.code == "flat-tokens.no-eos"
    assert "sequence 3" in str(found.found)
    assert checked(make(tmp_path / "b.zarr", [[1, 7], [7]]), "sample", eos_id=7) == []
    assert codes(make(tmp_path / "c.zarr", [[1, 7], [3]], eos_id=7)) == []  # chats may end in another id


# --- side file ---------------------------------------------------------------------------------------------------


def test_every_changed_byte_is_found_with_a_side_file(tmp_path: Path) -> None:
    path = make(tmp_path / "a.zarr", LONG)
    file = path / "encoded_tokens" / "9"
    poke(file, 1, int(np.fromfile(file, "<u4")[1]) ^ 2)
    assert codes(path, "sample") == []
    (found,) = checked(path)
    assert (found.code, found.path) == ("flat-tokens.digest", str(file))
    file.unlink()
    assert set(codes(path)) == {"digest", "chunk.present"}


def test_a_side_file_of_other_data_is_an_error(tmp_path: Path) -> None:
    path, other = make(tmp_path / "a.zarr"), make(tmp_path / "b.zarr", [[1]])
    shutil.copy(f"{other}.penstock", f"{path}.penstock")
    assert {(one.code, one.severity) for one in checked(path)} == {
        ("flat-tokens.changed", "error"),
        ("flat-tokens.digest", "error"),
    }
    Path(f"{path}.penstock").write_text("{")
    (found,) = checked(path)
    assert (found.code, found.severity) == ("flat-tokens.side-file", "error")


def test_a_side_file_for_foreign_data(tmp_path: Path, groups: Path) -> None:
    for name in ("seed/v2_named_tokens", "tiny_dataset", "variants/v3_shard_zstd", "edge/empty"):
        path = tmp_path / name
        shutil.copytree(groups / name, path)
        before = files_in(path)
        side = FORMAT.write_manifest(LocalStore(), str(path), OpenOptions(eos_id=3))
        assert side == f"{path}.penstock"
        assert files_in(path) == before
        # Their sequences do not end in that id, and the side file now says that they do.
        assert {one.code for one in checked(path) if one.severity == "error"} <= {"flat-tokens.no-eos"}
        found = FORMAT.open(LocalStore(), str(path), OpenOptions())
        assert found.manifest is not None
        assert found.manifest.num_tokens == found.num_tokens
        assert found.eos_id == 3
        # A second one keeps what it can't know again.
        FORMAT.write_manifest(LocalStore(), str(path), OpenOptions())
        assert FORMAT.open(LocalStore(), str(path), OpenOptions()).eos_id == 3


def test_consolidated_metadata_that_differ(tmp_path: Path, groups: Path) -> None:
    path = tmp_path / "a"
    shutil.copytree(groups / "variants" / "v2_consolidated", path)
    assert codes(path) == []
    (path / ".zattrs").write_text('{"max_token_id": 101}')
    (found,) = checked(path)
    assert (found.code, found.severity) == ("flat-tokens.metadata.consolidated", "warning")


def test_big_endian_is_a_warning(tmp_path: Path) -> None:
    path = without_side_file(make(tmp_path / "a.zarr"))
    for file in sorted((path / "encoded_tokens").glob("[0-9]*")):
        np.fromfile(file, "<u4").astype(">u4").tofile(file)
    where = path / "encoded_tokens" / ".zarray"
    where.write_text(where.read_text().replace("<u4", ">u4"))
    (found,) = checked(path)
    assert (found.code, found.severity) == ("flat-tokens.byte-order", "warning")
    assert FORMAT.open(LocalStore(), str(path), OpenOptions()).tokens(0, 5).tolist() == [1, 2, 3, 4, 5]
