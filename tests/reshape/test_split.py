"""`split`: every document or line in exactly one part."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.internals import PbinWriter, part_counts
from tests.reshape.datasets import DOCUMENTS, documents_in, files_in, lines_in, sound, write_lines, write_tokens

import penstock as ps
from penstock import split
from penstock.errors import ConfigError


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 80), st.lists(st.integers(0, 9), min_size=2, max_size=4).filter(any), st.integers(0, 99))
def test_each_document_is_in_one_part(
    tmp_path_factory: pytest.TempPathFactory, count: int, ratio: list[int], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("split")
    source = write_tokens(folder / "a.pbin", [[n] * (n % 4 + 1) for n in range(count)])
    parts = split(source, folder / "parts", ratio=ratio, seed=seed)
    found = [[document[0] for document in documents_in(part.path)] for part in parts]
    assert sorted(number for part in found for number in part) == list(range(count))
    assert all(part == sorted(part) for part in found)
    assert [len(part) for part in found] == part_counts(count, ratio)
    assert all(sound(Path(part.path)) for part in parts)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**12), st.lists(st.floats(0, 100), min_size=2, max_size=6).filter(lambda x: sum(x) > 1e-3))
def test_counts_are_the_shares(count: int, shares: list[float]) -> None:
    counts = part_counts(count, shares)
    assert sum(counts) == count
    assert all(abs(one - count * share / sum(shares)) < 1 + 1e-4 for one, share in zip(counts, shares, strict=True))


def test_counts_by_largest_remainder() -> None:
    assert part_counts(10, (8, 1, 1)) == [8, 1, 1]
    assert part_counts(5, (8, 1, 1)) == [4, 1, 0]
    assert part_counts(7, (1, 1, 1)) == [3, 2, 2]
    assert part_counts(3, (1, 0)) == [3, 0]


def test_lines_and_names(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [str(n) for n in range(30)], last=False)
    parts = split(source, tmp_path / "parts", ratio=(0.8, 0.2))
    assert [Path(part.path).name for part in parts] == ["a_train.jsonl", "a_validation.jsonl"]
    assert [part.samples for part in parts] == [24, 6]
    whole = {*source.read_bytes().split(b"\n")}
    assert {line for part in parts for line in lines_in(part.path)} == whole
    named = split(source, tmp_path / "named", ratio=(1, 1), names=("x", "y"))
    assert [Path(part.path).name for part in named] == ["a_x.jsonl", "a_y.jsonl"]
    numbered = split(source, tmp_path / "numbered", ratio=(1, 1, 1, 1))
    assert [Path(part.path).name for part in numbered] == [f"a_{n}.jsonl" for n in range(4)]


def test_seeds_and_runs(tmp_path: Path) -> None:
    source = write_tokens(tmp_path / "a.pbin", [[n] for n in range(200)])
    first, again, other = (
        [documents_in(part.path) for part in split(source, tmp_path / str(n), ratio=(1, 1), seed=seed)]
        for n, seed in enumerate((1, 1, 2))
    )
    assert first == again != other


@settings(max_examples=10, deadline=None)
@given(DOCUMENTS, st.integers(0, 9))
def test_by_content_equal_documents_share_a_part(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("split")
    parts_of: dict[int, list[set[tuple[int, ...]]]] = {}
    for token_bytes in (1, 4):
        source = write_tokens(folder / f"{token_bytes}.pbin", documents * 2, token_bytes)
        parts = split(source, folder / "parts", ratio=(1, 1), by="content", seed=seed)
        parts_of[token_bytes] = [set(map(tuple, documents_in(part.path))) for part in parts]
        train, validation = parts_of[token_bytes]
        assert not train & validation
        assert train | validation == set(map(tuple, documents))
    assert parts_of[1] == parts_of[4]


def test_by_content_shares_hold_on_average(tmp_path: Path) -> None:
    source = write_tokens(tmp_path / "a.pbin", [[n % 251, n // 251] for n in range(2000)])
    counts = [part.samples for part in split(source, tmp_path / "parts", ratio=(8, 1, 1), by="content")]
    assert sum(counts) == 2000
    assert abs(counts[0] - 1600) < 80
    assert abs(counts[1] - 200) < 60


def test_other_formats(tmp_path: Path) -> None:
    source = write_tokens(tmp_path / "a.pbin", [[n] for n in range(10)], 4)
    parts = split(source, tmp_path / "parts", ratio=(1, 1), to="flat-tokens")
    assert [Path(part.path).name for part in parts] == ["a_train.zarr", "a_validation.zarr"]
    assert sorted(documents_in(parts[0].path) + documents_in(parts[1].path)) == [[n] for n in range(10)]


def test_refusals(tmp_path: Path) -> None:
    source = write_tokens(tmp_path / "a.pbin", [[1], [2]])
    for ratio in ((), (1,), (0, 0), (-1, 2), (float("nan"), 1)):
        with pytest.raises(ConfigError, match="split ratio"):
            split(source, tmp_path / "parts", ratio=ratio)
    for names in (("a",), ("a", "a"), ("a", "../b"), ("", "b")):
        with pytest.raises(ConfigError, match="names of the parts"):
            split(source, tmp_path / "parts", ratio=(1, 1), names=names)
    with pytest.raises(ConfigError, match="unknown "):
        split(source, tmp_path / "parts", ratio=(1, 1), by="luck")  # pyright: ignore[reportArgumentType]


def test_a_part_that_exists_stops_all(tmp_path: Path) -> None:
    source = write_tokens(tmp_path / "a.pbin", [[1], [2]])
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "a_validation.pbin").write_bytes(b"mine")
    with pytest.raises(ConfigError, match="exists"):
        split(source, tmp_path / "parts", ratio=(1, 1))
    assert files_in(tmp_path / "parts") == {"a_validation.pbin"}
    assert (tmp_path / "parts" / "a_validation.pbin").read_bytes() == b"mine"
    split(source, tmp_path / "parts", ratio=(1, 1), overwrite=True)
    assert len(ps.open(tmp_path / "parts" / "a_validation.pbin")) == 1


def test_killed_between_two_parts_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_tokens(tmp_path / "a.pbin", [[n, n] for n in range(30)])
    split(source, tmp_path / "plain", ratio=(2, 1), seed=1)
    commit, done = PbinWriter.commit, list[PbinWriter]()

    def killed(writer: PbinWriter) -> Any:
        if done:
            raise KeyboardInterrupt
        done.append(writer)
        return commit(writer)

    with monkeypatch.context() as patched:
        patched.setattr(PbinWriter, "commit", killed)
        with pytest.raises(KeyboardInterrupt):
            split(source, tmp_path / "parts", ratio=(2, 1), seed=1)
    assert sorted(os.listdir(tmp_path / "parts"))[1:] == ["a_train.pbin", "a_train.pbin.penstock"]
    with pytest.raises(ConfigError, match="exists"):
        split(source, tmp_path / "parts", ratio=(2, 1), seed=2)  # that is other work
    split(source, tmp_path / "parts", ratio=(2, 1), seed=1)
    assert files_in(tmp_path / "parts") == files_in(tmp_path / "plain")
    for name in files_in(tmp_path / "plain"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()
    with pytest.raises(ConfigError, match="exists"):
        split(source, tmp_path / "parts", ratio=(2, 1), seed=1)
