"""`Chunk`: windows equal to Modalities', and labels checked against the rule written out token by token."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.order import Shuffle
from penstock.pack import Chunk, Whole
from penstock.testing.memory import MemoryTokens
from penstock.testing.sources import SourceLaws
from penstock.testing.strategies import token_documents
from penstock.types import Extent, Place, Sample, TokenArray

DOCUMENTS = [[1, 2, 3, 4, 0], [0], [7, 0], [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 0], [], [5, 0]]
EOS = 0


def tokens_of(documents: list[Any]) -> list[int]:
    return [int(token) for document in documents for token in document]


def expected_shift(documents: list[Any], length: int, begin: int) -> Sample:
    """The window that reads `length + 1` tokens from `begin`, by the rule for one token after another."""
    owner = [number for number, document in enumerate(documents) for _ in document]
    tokens = tokens_of(documents)
    segment_ids, positions, borders = [], [], []
    for column in range(length):
        place = begin + column
        if column == 0 or owner[place] != owner[place - 1]:
            borders.append(column)
        segment_ids.append(len(borders))
        positions.append(column - borders[-1])
    borders.append(length)
    inside = range(begin, begin + length)
    return {
        "tokens": tokens[begin : begin + length],
        "inputs": tokens[begin : begin + length],
        "targets": tokens[begin + 1 : begin + length + 1],
        "loss_mask": [owner[place + 1] == owner[place] for place in inside],
        "segment_ids": segment_ids,
        "positions": positions,
        "cu_seqlens": borders,
        "max_seqlen": int(np.diff(borders).max()),
    }


def expected_start_zero(documents: list[Any], length: int, begin: int) -> Sample:
    owner = [number for number, document in enumerate(documents) for _ in document]
    tokens = tokens_of(documents)
    starts = [place == 0 or owner[place] != owner[place - 1] for place in range(begin, begin + length)]
    inputs = [0 if column == 0 or starts[column] else tokens[begin + column - 1] for column in range(length)]
    window = tokens[begin : begin + length]
    shared = expected_shift([*documents, [1]], length, begin)
    return {
        **shared,
        "inputs": inputs,
        "targets": window,
        "loss_mask": [True] * length,
        "is_seq_start": starts,
    }


def plain(sample: Sample) -> Sample:
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in sample.items()}


def golden_cases(golden: Path) -> list[dict[str, Any]]:
    return json.loads((golden / "modalities" / "continuous.json").read_text())


def golden_tokens(path: Path) -> MemoryTokens:
    data = path.read_bytes()
    size_bytes, width = struct.unpack("<QI", data[:12])
    tokens = np.frombuffer(data, f"<u{width}", size_bytes // width, 12)
    return MemoryTokens([tokens], dtype=f"uint{8 * width}")


def test_windows_equal_those_of_modalities(golden: Path) -> None:
    cases = golden_cases(golden)
    assert len(cases) == 86
    sources = {case["file"]: golden_tokens(golden / "modalities" / case["file"]) for case in cases}
    for case in cases:
        windows = Chunk(case["block_size"], overlap=int(case["reuse_last_target"]))(sources[case["file"]])
        assert len(windows) == case["num_samples"], case
        tokens = windows.get_batch(np.arange(len(windows)))["tokens"]
        assert hashlib.sha256(tokens.astype("<i8").tobytes()).hexdigest() == case["samples_sha256_i64"], case


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 80), st.integers(1, 12), st.data())
def test_any_length_and_overlap(total: int, length: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, length - 1))
    source = MemoryTokens([np.arange(total)])
    if total < length:
        with pytest.raises(ConfigError):
            Chunk(length, overlap=overlap)(source)
        return
    windows = Chunk(length, overlap=overlap)(source)
    starts = range(0, total - length + 1, length - overlap)
    assert [plain(window)["tokens"] for window in windows] == [list(range(at, at + length)) for at in starts]


@pytest.mark.parametrize("start_flags", [False, True])
def test_labels_by_shift(start_flags: bool) -> None:
    documents = token_documents(max_id=9, dtype="uint8", min_docs=1, eos_id=EOS)

    @settings(max_examples=60, deadline=None)
    @given(documents, st.integers(1, 12))
    def law(documents: list[TokenArray], length: int) -> None:
        source = MemoryTokens(documents, eos_id=None if start_flags else EOS, start_flags=start_flags)
        if source.num_tokens < length + 1:
            return
        windows = Chunk(length, labels="shift")(source)
        assert len(windows) == (source.num_tokens - 1) // length
        for index in range(len(windows)):
            assert plain(windows[index]) == expected_shift(documents, length, index * length)

    law()


@pytest.mark.parametrize("start_flags", [False, True])
def test_labels_start_zero(start_flags: bool) -> None:
    documents = token_documents(max_id=9, dtype="uint16", min_docs=1, eos_id=EOS)

    @settings(max_examples=60, deadline=None)
    @given(documents, st.integers(1, 12))
    def law(documents: list[TokenArray], length: int) -> None:
        source = MemoryTokens(documents, eos_id=None if start_flags else EOS, start_flags=start_flags)
        if source.num_tokens < length:
            return
        windows = Chunk(length, labels="start-zero")(source)
        assert len(windows) == source.num_tokens // length
        for index in range(len(windows)):
            assert plain(windows[index]) == expected_start_zero(documents, length, index * length)

    law()


def test_the_example_of_flat_tokens() -> None:
    source = MemoryTokens([[1, 2], [3, 4, 5], [6, 7, 8]], start_flags=True)
    whole = Chunk(8, labels="start-zero")(source)[0]
    assert whole["inputs"].tolist() == [0, 1, 0, 3, 4, 0, 6, 7]
    assert whole["targets"].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    halves = Chunk(4, labels="start-zero")(source).get_batch([0, 1])
    assert halves["inputs"].tolist() == [[0, 1, 0, 3], [0, 0, 6, 7]]
    assert halves["targets"].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert halves["is_seq_start"].tolist() == [[1, 0, 1, 0], [0, 1, 0, 0]]


@pytest.mark.parametrize("labels", [None, "shift", "start-zero"])
class TestWindows(SourceLaws):
    @pytest.fixture
    def source(self, labels: Any) -> Any:
        return Chunk(4, labels=labels)(MemoryTokens(DOCUMENTS, eos_id=EOS))

    @pytest.fixture
    def expected(self, labels: Any) -> list[Sample]:
        tokens = np.array(tokens_of(DOCUMENTS), dtype=np.uint8)
        if labels is None:
            return [{"tokens": tokens[at : at + 4]} for at in range(0, len(tokens) - 3, 4)]
        rule = expected_shift if labels == "shift" else expected_start_zero
        return [as_stored(rule(DOCUMENTS, 4, at)) for at in range(0, 20, 4)]


def as_stored(sample: Sample) -> Sample:
    kinds = {"tokens": np.uint8, "inputs": np.uint8, "targets": np.uint8, "loss_mask": bool, "is_seq_start": bool}
    return {
        name: value if name == "max_seqlen" else np.array(value, dtype=kinds.get(name, np.int32))
        for name, value in sample.items()
    }


@pytest.mark.parametrize("start_flags", [False, True])
@pytest.mark.parametrize("labels", ["shift", "start-zero"])
def test_each_choice_of_fields_gives_what_all_of_them_have(labels: Any, start_flags: bool) -> None:
    source = MemoryTokens(DOCUMENTS, eos_id=None if start_flags else EOS, start_flags=start_flags)
    every = Chunk(4, labels=labels)(source)
    expected, indices = every.get_batch([3, 0]), [3, 0]
    names = list(expected)
    for mask in range(1, 1 << len(names)):
        chosen = tuple(name for place, name in enumerate(names) if mask >> place & 1)[::-1]
        windows = Chunk(4, labels=labels, fields=chosen)(source)
        found = windows.get_batch(indices)
        assert tuple(found) == chosen == tuple(field.name for field in windows.schema.fields)
        assert all(
            np.array_equal(np.concatenate(found[n]), np.concatenate(expected[n])) for n in {"cu_seqlens"} & {*chosen}
        )
        assert all(found[name].dtype == expected[name].dtype for name in {*chosen} - {"cu_seqlens"})
        assert all(np.array_equal(found[name], expected[name]) for name in {*chosen} - {"cu_seqlens"})
        assert plain(windows[1]) == {name: plain(every[1])[name] for name in chosen}


def test_inputs_and_targets_are_views_of_one_block_and_ask_for_no_documents() -> None:
    class Unknown(MemoryTokens):
        @property
        def doc_starts(self) -> Any:
            raise AssertionError("documents were looked for")

    windows = Chunk(4, labels="shift", fields=["inputs", "targets"])(Unknown(DOCUMENTS))  # type: ignore[arg-type]
    batch = windows.get_batch([0, 2])
    assert batch["inputs"].base is batch["targets"].base is not None
    assert np.array_equal(batch["inputs"][:, 1:], batch["targets"][:, :-1])
    assert windows.packing == Chunk(4, labels="shift", fields=("inputs", "targets"))
    assert windows.recipe()["fields"] == ["inputs", "targets"]


def test_a_batch_that_is_held_is_never_written_to_again() -> None:
    """Columns this large are made in memory of batches that are gone."""
    rng = np.random.default_rng(0)
    source = MemoryTokens([rng.integers(0, 9, 1 << 17)], dtype="uint16", eos_id=EOS)
    windows = Chunk(1 << 12, labels="shift")(source)
    held, copies, places = [], [], set()
    for step in range(12):
        batch = windows.get_batch(np.arange(16) + step % 3)
        places.add(batch["positions"].ctypes.data)
        if step % 2:
            held.append(batch["positions"][1:])  # a view of it is enough
            copies.append(held[-1].copy())
    assert len(places) < 12  # the others came back
    assert all(np.array_equal(one, other) for one, other in zip(held, copies, strict=True))


def test_an_explicit_eos_id_goes_before_start_flags() -> None:
    documents = [[1, 2, 9], [3, 4, 5, 9]]
    source = MemoryTokens(documents, start_flags=True)
    windows = Chunk(6, labels="shift", eos_id=2)(source)
    assert windows[0]["segment_ids"].tolist() == [1, 1, 2, 2, 2, 2]


def test_the_eos_id_given_goes_before_the_source_s() -> None:
    source = MemoryTokens([[1, 2, 9], [3, 4, 5, 9]], eos_id=9)
    assert Chunk(6, labels="shift", eos_id=2)(source)[0]["segment_ids"].tolist() == [1, 1, 2, 2, 2, 2]


@pytest.mark.parametrize("eos_id", [-1, 256])
def test_an_eos_id_that_no_token_can_have(eos_id: int) -> None:
    with pytest.raises(ConfigError, match="eos_id"):
        Chunk(2, labels="shift", eos_id=eos_id)(MemoryTokens([[1, 2, 3]]))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"length": 0}, "at least one token"),
        ({"length": 4, "overlap": 4}, "overlap"),
        ({"length": 4, "overlap": -1}, "overlap"),
        ({"length": 4, "overlap": 1, "labels": "shift"}, "overlap"),
        ({"length": 4, "labels": "next"}, "labels"),
        ({"length": 4, "fields": ("tokens",)}, "labels="),
        ({"length": 4, "labels": "shift", "fields": ()}, "these fields"),
        ({"length": 4, "labels": "shift", "fields": "inputs"}, "these fields"),
        ({"length": 4, "labels": "shift", "fields": ("inputs", "inputs")}, "each once"),
        ({"length": 4, "labels": "shift", "fields": ("is_seq_start",)}, "these fields"),
    ],
)
def test_options_that_can_not_work(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Chunk(**arguments)


def test_fewer_tokens_than_a_window() -> None:
    source = MemoryTokens([[1, 2, 3, 0]], eos_id=0)
    for length, labels in ((5, None), (4, "shift")):
        with pytest.raises(ConfigError, match=r"4 tokens.*5") as caught:
            Chunk(length, labels=labels)(source)
        assert isinstance(caught.value, ValueError)
    assert len(Chunk(4)(source)) == 1
    with pytest.raises(ConfigError):
        Chunk(1)(MemoryTokens([]))


def test_a_buffer_is_filled_and_returned() -> None:
    source = MemoryTokens(DOCUMENTS, eos_id=EOS)
    for labels in (None, "shift"):
        windows = Chunk(4, labels=labels)(source)
        out = np.full((2, windows.window_read_tokens), 77, dtype=np.uint8)
        batch = windows.gather_windows([1, 0], out)
        assert np.shares_memory(batch["tokens"], out)
        assert batch["tokens"].tolist() == windows.get_batch([1, 0])["tokens"].tolist()


def test_documents_of_a_window() -> None:
    source = MemoryTokens(DOCUMENTS, eos_id=EOS)
    starts = source.doc_starts
    for windows in (Chunk(6)(source), Chunk(6, overlap=2)(source), Chunk(6, labels="shift")(source)):
        for index in range(len(windows)):
            parts = [
                source.tokens(int(starts[document]) + start, int(starts[document]) + stop)
                for document, start, stop in windows.documents_of(index)
            ]
            assert all(len(part) for part in parts)
            assert np.concatenate(parts).tolist() == windows[index]["tokens"].tolist()
    assert Chunk(6)(source).documents_of(0) == ((0, 0, 5), (1, 0, 1))


class WithExtents(MemoryTokens):
    def token_extent(self, start: int, stop: int, /) -> tuple[Extent, ...]:
        return (Extent("f", start, stop - start),)


def test_where_a_window_is() -> None:
    windows = Chunk(6, labels="shift")(WithExtents(DOCUMENTS, eos_id=EOS))
    assert windows.place_of(1) == Place(documents=((2, 0, 2), (3, 0, 4)), extents=(Extent("f", 6, 6),))


def test_what_decides_windows_decides_the_fingerprint() -> None:
    source, other = MemoryTokens(DOCUMENTS, eos_id=0), MemoryTokens(DOCUMENTS, eos_id=1)
    packings = [Chunk(4), Chunk(5), Chunk(4, overlap=1), Chunk(4, labels="shift"), Chunk(4, labels="start-zero")]
    windows = [packing(source) for packing in packings]
    windows += [Chunk(4)(other), Chunk(4, labels="shift", eos_id=5)(source)]
    windows += [Chunk(4, labels="shift", fields=(name,))(source) for name in ("inputs", "targets", "loss_mask")]
    assert len({each.fingerprint for each in windows}) == len(windows)


def test_recipe_and_children() -> None:
    source = MemoryTokens(DOCUMENTS, eos_id=0)
    windows = Chunk(4, labels="shift")(source)
    assert windows.children() == {"source": source}
    assert windows.recipe() == {
        "kind": "chunk",
        "version": "chunk-1",
        "length": 4,
        "overlap": 0,
        "labels": "shift",
        "eos_id": None,
        "borders": "index",
        "source": source.recipe(),
    }


def test_windows_of_remote_tokens_are_shuffled_in_blocks() -> None:
    class Remote(MemoryTokens):
        preferred_mode = "blocks"

    remote, local = Remote(DOCUMENTS), MemoryTokens(DOCUMENTS)
    for packing in (Chunk(4), Whole(4)):
        assert Shuffle(packing(remote), 1).version == "blocks-1"
        assert Shuffle(packing(local), 1).version == "feistel-1"


def test_large_indices_are_exact() -> None:
    class Endless(MemoryTokens):
        @property
        def num_tokens(self) -> int:
            return 10**12

        def gather(self, starts: Any, length: int, out: Any = None) -> Any:
            return starts[:, None] + np.arange(length)

    windows = Chunk(2048, overlap=1)(Endless([]))
    assert len(windows) == (10**12 - 2048) // 2047 + 1
    last = len(windows) - 1
    assert windows.get_batch([last])["tokens"][0, 0] == last * 2047
