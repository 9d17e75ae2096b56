"""Writing: the original's own bytes, the dtype rule, limits, and what a killed writer leaves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.internals import MEGATRON_FORMAT as FORMAT
from tests.internals import MOST_LENGTH, kind_for

import penstock as ps
from penstock.errors import ConfigError, TooLarge, Unsupported
from penstock.store import LocalStore
from penstock.types import OpenOptions

SEED = [[1, 2], [3, 4, 5], [6, 7, 8]]


def write(prefix: Path, docs: list[list[int]], **options: Any) -> Any:
    with ps.create(prefix, format="megatron", **options) as writer:
        for doc in docs:
            writer.write({"tokens": doc})
        return writer.commit()


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "int64"])
def test_golden_bytes(golden: Path, tmp_path: Path, dtype: str) -> None:
    write(tmp_path / "a", SEED, dtype=dtype)
    theirs = golden / "megatron" / f"seed_{dtype}_text_document"
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"a{suffix}").read_bytes() == Path(f"{theirs}{suffix}").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["a.bin", "a.idx", "a.idx.penstock"]


def test_golden_bytes_with_an_empty_document(golden: Path, tmp_path: Path) -> None:
    write(tmp_path / "a", [[1, 2], [], [70_000, 8]], token_bytes=4)
    for suffix in (".bin", ".idx"):
        theirs = golden / "megatron" / f"with_empty_sequence_int32{suffix}"
        assert (tmp_path / f"a{suffix}").read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"vocab_size": 65_499}, "uint16"),
        ({"vocab_size": 65_500}, "int32"),
        ({"vocab_size": 10}, "uint16"),
        ({"token_bytes": 1}, "uint8"),
        ({"token_bytes": 2}, "uint16"),
        ({"token_bytes": 4, "vocab_size": 10}, "uint16"),
        ({"token_bytes": 2, "vocab_size": 65_500}, "int32"),
        ({"dtype": "float32", "token_bytes": 2}, "float32"),
    ],
)
def test_dtype_rule(options: dict[str, Any], name: str) -> None:
    kind = kind_for("p", **options)
    assert kind is not None
    assert kind.name == name


def test_no_dtype_or_a_wrong_one(tmp_path: Path) -> None:
    for options in ({}, {"dtype": "uint32"}, {"token_bytes": 3}, {"dtype": "object"}):
        with pytest.raises(ConfigError):
            ps.create(tmp_path / "a", format="megatron", **options)
    assert os.listdir(tmp_path) == []


@settings(deadline=None, max_examples=40)
@given(
    dtype=st.sampled_from(["uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16"]),
    docs=st.lists(st.lists(st.integers(0, (1 << 24) - 1), max_size=6), max_size=6),
)
def test_every_dtype_comes_back(tmp_path_factory: pytest.TempPathFactory, dtype: str, docs: list[list[int]]) -> None:
    kind = kind_for("p", dtype)
    assert kind is not None
    docs = [[token % kind.id_limit for token in doc] for doc in docs] + [[kind.id_limit - 1]]
    prefix = tmp_path_factory.mktemp("dtype") / "a"
    write(prefix, docs, dtype=dtype)
    source = ps.open(prefix)
    assert [sample["tokens"].tolist() for sample in source] == docs
    assert ps.verify(prefix, depth="full") == []


def test_ids_beyond_the_dtype_or_the_vocabulary(tmp_path: Path) -> None:
    for options, wrong in (({"dtype": "int16"}, 1 << 15), ({"vocab_size": 10}, 10), ({"dtype": "float32"}, 1 << 24)):
        with pytest.raises(TooLarge) as caught:
            write(tmp_path / "a", [[1], [wrong]], **options)
        assert caught.value.found == wrong
    assert os.listdir(tmp_path) == []


def test_a_document_longer_than_an_index_can_tell(tmp_path: Path) -> None:
    class Long(np.ndarray): ...

    writer = ps.create(tmp_path / "a", format="megatron", token_bytes=1)
    tokens = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (MOST_LENGTH + 1,), (0,))
    with pytest.raises(TooLarge, match="document"):
        writer.write_run(tokens, np.array([MOST_LENGTH + 1]))
    writer.abort()


def test_modes(golden: Path, tmp_path: Path) -> None:
    write(tmp_path / "a", SEED, dtype="int32", modes=[0, 1, 0])
    source: Any = ps.open(tmp_path / "a")
    assert source.modes.tolist() == [0, 1, 0]
    theirs = (golden / "megatron" / "multimodal_int32.idx").read_bytes()
    ours = (tmp_path / "a.idx").read_bytes()
    assert ours[:26] == theirs[:26]
    assert ours[-3:] == theirs[-3:]
    for wrong in ([0, 1], [0, 1, 0, 0], [0, 1, 128], [[0]], [0.5, 1, 1]):
        with pytest.raises(ConfigError, match="mode"):
            write(tmp_path / "b", SEED, dtype="int32", modes=wrong)
    assert not list(tmp_path.glob("b*"))


def test_any_name_of_the_dataset(tmp_path: Path) -> None:
    for name in ("a", "b.bin", "c.idx"):
        write(tmp_path / name, SEED, token_bytes=2)
    assert sorted(path.name for path in tmp_path.glob("*.bin")) == ["a.bin", "b.bin", "c.bin"]
    for name in ("a", "a.bin", "a.idx"):
        with pytest.raises(ConfigError, match="exists"):
            write(tmp_path / name, SEED, token_bytes=2)


def test_a_strangers_bin_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"mine")
    with pytest.raises(ConfigError, match="exists"):
        write(tmp_path / "a", SEED, token_bytes=2)
    assert (tmp_path / "a.bin").read_bytes() == b"mine"
    write(tmp_path / "a", SEED, token_bytes=2, overwrite=True)
    assert len(ps.open(tmp_path / "a")) == 3


def test_what_a_killed_writer_left_is_replaced(tmp_path: Path) -> None:
    write(tmp_path / "a", [[9, 9, 9]], token_bytes=2)
    os.unlink(tmp_path / "a.idx")  # killed after the tokens, before the index
    with pytest.raises(Exception, match="no"):
        ps.open(tmp_path / "a")
    write(tmp_path / "a", SEED, token_bytes=2)
    assert len(ps.open(tmp_path / "a")) == 3
    os.unlink(tmp_path / "a.idx")
    (tmp_path / "a.bin").write_bytes(b"mine")  # and somebody else's file meanwhile
    with pytest.raises(ConfigError, match="exists"):
        write(tmp_path / "a", SEED, token_bytes=2)


def test_parts_wider_or_narrower_than_the_dtype(tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.write_bytes(np.array([1, 2, 3], "<u2").tobytes())
    store = LocalStore()
    for dtype in ("int32", "int64", "float32", "uint16", "int16"):
        options = {"dtype": dtype, "token_bytes": 2}
        with FORMAT.create(store, str(tmp_path / dtype), options, overwrite=False) as writer:
            writer.write_part(str(part), 0, np.array([2, 1]), 3)
        source = FORMAT.open(store, str(tmp_path / dtype), OpenOptions())
        assert [sample["tokens"].tolist() for sample in source] == [[1, 2], [3]]


def test_side_file(tmp_path: Path) -> None:
    manifest = write(tmp_path / "a", SEED, vocab_size=100, eos_id=8, tokenizer="mine")
    assert (manifest.num_tokens, manifest.max_token_id, manifest.eos_id) == (8, 8, 8)
    assert manifest.options == {"dtype": "uint16"}
    assert manifest.size_bytes == sum(path.stat().st_size for path in tmp_path.iterdir() if path.suffix != ".penstock")
    assert set(manifest.block_digests) == {"data", "index"}
    with pytest.raises(Unsupported):
        ps.create(tmp_path / "x", format="raw-tokens")
