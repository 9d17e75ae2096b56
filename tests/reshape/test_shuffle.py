"""`shuffle`: the same documents or lines, in the order that the seed decides."""

from __future__ import annotations

import collections
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.internals import Place, SeededOrder, ShuffleCost, main, put, replace
from tests.reshape.datasets import DOCUMENTS, LINES, documents_in, lines_in, sound, write_lines, write_tokens

import penstock as ps
from penstock import shuffle
from penstock.errors import ConfigError, Unsupported
from penstock.store import LocalStore, MemoryStore


@settings(max_examples=15, deadline=None)
@given(DOCUMENTS, st.integers(-5, 1 << 70))
def test_documents_are_kept(tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], seed: int) -> None:
    folder = tmp_path_factory.mktemp("shuffle")
    source = write_tokens(folder / "a.pbin", documents)
    written = shuffle(source, folder / "b.pbin", seed=seed)
    found = documents_in(folder / "b.pbin")
    assert collections.Counter(map(tuple, found)) == collections.Counter(map(tuple, documents))
    assert written.samples == len(documents)
    if documents:
        assert found == [documents[i] for i in SeededOrder(len(documents), seed).rows_at(0, len(documents)).tolist()]
    assert sound(folder / "b.pbin")


@settings(max_examples=15, deadline=None)
@given(LINES, st.integers(0, 99), st.booleans())
def test_lines_are_kept(tmp_path_factory: pytest.TempPathFactory, texts: list[str], seed: int, last: bool) -> None:
    folder = tmp_path_factory.mktemp("shuffle")
    source = write_lines(folder / "a.jsonl", texts or ["x"], last=last)
    shuffle(source, folder / "b.jsonl", seed=seed)
    lines = source.read_bytes().removesuffix(b"\n").split(b"\n")
    order = SeededOrder(len(lines), seed).rows_at(0, len(lines)).tolist()
    assert lines_in(folder / "b.jsonl") == [lines[i] for i in order]
    assert sound(folder / "b.jsonl")


def test_the_order_is_that_of_a_shuffled_stream(tmp_path: Path) -> None:
    source = write_tokens(tmp_path / "a.pbin", [[n] for n in range(500)])
    shuffle(source, tmp_path / "b.pbin", seed=7)
    stream = ps.Shuffle(ps.open(source), seed=7)
    assert documents_in(tmp_path / "b.pbin") == [stream[p]["tokens"].tolist() for p in range(500)]


def test_bytes_depend_on_source_and_seed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_tokens(tmp_path / "a.pbin", [[n % 200] * (n % 3000) for n in range(1500)])
    shuffle(source, tmp_path / "b.pbin", seed=1)
    for name, gathers in (("gathered", True), ("scratch", False)):
        replace(monkeypatch, "gathers_in_memory", lambda *_, answer=gathers: answer)
        shuffle(source, tmp_path / f"{name}.pbin", seed=1, memory_bytes=1 << 20)
        assert (tmp_path / f"{name}.pbin").read_bytes() == (tmp_path / "b.pbin").read_bytes()
    shuffle(source, tmp_path / "other.pbin", seed=2)
    assert (tmp_path / "other.pbin").read_bytes() != (tmp_path / "b.pbin").read_bytes()


def test_other_formats_and_widths(tmp_path: Path) -> None:
    source = write_tokens(tmp_path / "a.zarr", [[n, n] for n in range(50)], 4, format="flat-tokens")
    shuffle(source, tmp_path / "b.zarr", seed=3)
    shuffle(source, tmp_path / "b.pbin", seed=3)
    assert documents_in(tmp_path / "b.zarr") == documents_in(tmp_path / "b.pbin")
    shuffle(write_tokens(tmp_path / "c.pbin", [[1]], 1), tmp_path / "d.pbin", seed=3, token_bytes=2)
    assert (tmp_path / "d.pbin").read_bytes()[8] == 2


def test_refusals(tmp_path: Path) -> None:
    source = write_tokens(tmp_path / "a.pbin", [[1]])
    with pytest.raises(ConfigError, match="would replace an input"):
        shuffle(source, source, seed=1, overwrite=True)
    with pytest.raises(ConfigError, match="too little memory"):
        shuffle(source, tmp_path / "b.pbin", seed=1, memory_bytes=10)
    shuffle(source, tmp_path / "b.pbin", seed=1)
    with pytest.raises(ConfigError, match="exists"):
        shuffle(source, tmp_path / "b.pbin", seed=1)
    assert ps.open(tmp_path / "b.pbin").manifest.options["seed"] == 1


class Reads(MemoryStore):
    """Counts what is read of a file."""

    reads = 0

    def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self.reads += path.endswith("a.jsonl")
        return super().get(path, start, length)


@pytest.mark.parametrize("memory_bytes", [1 << 20, 1 << 26])
def test_what_it_costs_is_said_before_and_holds(memory_bytes: int, tmp_path: Path) -> None:
    store, said = Reads(), list[ShuffleCost]()
    lines = b"".join(b'{"text": "%05d %s"}\n' % (number, b"x" * 2000) for number in range(10_000))
    put(store, "mem://a.jsonl", lines)
    source, before = Place(store, "mem://a.jsonl"), 0

    def announce(cost: ShuffleCost) -> None:
        nonlocal before
        assert not (tmp_path / "b.jsonl").exists()
        before = store.reads
        said.append(cost)

    shuffle(
        source, Place(LocalStore(), str(tmp_path / "b.jsonl")), seed=1, memory_bytes=memory_bytes, announce=announce
    )
    (cost,) = said
    assert (cost.read_bytes, cost.is_remote) == (len(lines), True)
    assert cost.scratch_bytes == (len(lines) if memory_bytes == 1 << 20 else 0)
    assert 0 < store.reads - before <= cost.reads + 1
    assert cost.reads < 10


def test_the_command_says_the_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(write_lines(tmp_path / "a.jsonl", ["one", "two"]))
    for more in ([], ["--json"]):
        with pytest.raises(SystemExit):
            main(["shuffle", source, "-o", str(tmp_path / f"b{len(more)}.jsonl"), "--seed", "1", *more])
    out, err = capsys.readouterr()
    assert err == "reads 50 B in at most 2 random reads\n"
    assert json.loads(out[out.index("{") :])["cost"]["reads"] == 2
    with pytest.raises(SystemExit) as ended:
        main(["shuffle", source, "-o", str(tmp_path / "b0.jsonl"), "--seed", "2"])
    assert ended.value.code == ConfigError.exit_status
    refusal = capsys.readouterr().err
    assert "exists" in refusal
    assert "reads" not in refusal, "what is refused costs nothing"


def test_a_folder_of_token_files_is_not_made(tmp_path: Path) -> None:
    source = write_tokens(tmp_path / "a.pbin", [[1, 2], [3]])
    ps.convert(source, tmp_path / "folder", to="pbin", file_tokens=2)
    with pytest.raises(Unsupported, match="writes one file, not token-files"):
        shuffle(str(tmp_path / "folder"), tmp_path / "b", seed=1)
    shuffle(str(tmp_path / "folder"), tmp_path / "b.pbin", seed=1)
    assert sound(tmp_path / "b.pbin")
