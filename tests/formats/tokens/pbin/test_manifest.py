"""Side files for packed files that another tool wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.internals import PBIN_FORMAT as FORMAT
from tests.internals import read_side_file

from penstock.errors import Corrupt
from penstock.store import LocalStore
from penstock.types import OpenOptions

Build = Callable[..., bytes]
Put = Callable[..., str]


def make(path: str, **options: int) -> str:
    return FORMAT.write_manifest(LocalStore(), path, OpenOptions(**options))


@pytest.mark.parametrize("name", ["docs.bpe2.pbin", "docs.small1.pbin", "docs.word4.pbin", "writer_t1.pbin"])
def test_equal_to_the_writers(golden: Path, tmp_path: Path, name: str) -> None:
    data = (golden / "modalities" / "pbin" / name).read_bytes()
    foreign, ours = tmp_path / "foreign.pbin", tmp_path / "ours.pbin"
    foreign.write_bytes(data)
    side = make(str(foreign))
    assert side == f"{foreign}.penstock"
    source = FORMAT.open(LocalStore(), str(foreign), OpenOptions())
    with FORMAT.create(LocalStore(), str(ours), {"token_bytes": data[8]}, overwrite=False) as writer:
        writer.write_run(source.tokens(0, source.num_tokens), source.doc_starts[1:] - source.doc_starts[:-1])
    assert Path(side).read_bytes() == Path(f"{ours}.penstock").read_bytes()
    assert foreign.read_bytes() == data


def test_it_finds_a_flipped_bit(golden: Path, put: Put) -> None:
    data = bytearray((golden / "modalities" / "pbin" / "docs.bpe2.pbin").read_bytes())
    path = put(bytes(data))
    make(path, eos_id=0)
    assert FORMAT.check(LocalStore(), path, OpenOptions(), "full") == []
    data[12_000] ^= 0x40
    put(bytes(data))
    assert "pbin.digest" in [one.code for one in FORMAT.check(LocalStore(), path, OpenOptions(), "full")]


def test_what_is_known_is_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "a.pbin")
    options = {"token_bytes": 2, "tokenizer": "t", "tokenizer_digest": "d", "eos_id": 7, "inputs": {"a": "b"}}
    with FORMAT.create(LocalStore(), path, options, overwrite=False) as writer:
        writer.write({"tokens": [1, 7]})
    before = read_side_file(LocalStore(), f"{path}.penstock", path)
    make(path)
    assert read_side_file(LocalStore(), f"{path}.penstock", path) == before


@pytest.mark.parametrize("layout", ["h8", "h12be", "h4", "h12le-abs"])
def test_digest_does_not_depend_on_the_layout(packed: Build, put: Put, layout: str) -> None:
    docs = [[1, 2, 3], [], [400]]
    old, new = put(packed(docs, layout), "old.pbin"), put(packed(docs, token_bytes=4), "new.pbin")
    manifests = [read_side_file(LocalStore(), make(path), path) for path in (old, new)]
    assert manifests[0] is not None
    assert manifests[1] is not None
    assert manifests[0].digest == manifests[1].digest


def test_damaged_data_get_none(golden: Path, put: Put, tmp_path: Path) -> None:
    path = put((golden / "modalities" / "pbin" / "merged.pbin").read_bytes())
    with pytest.raises(Corrupt):
        make(path)
    assert [one.name for one in tmp_path.iterdir()] == ["a.pbin"]


def test_no_tokens(packed: Build, put: Put) -> None:
    path = put(packed([[], []]))
    make(path)
    found = read_side_file(LocalStore(), f"{path}.penstock", path)
    assert found is not None
    assert (found.num_samples, found.num_tokens, found.max_token_id) == (2, 0, None)
