"""One document as long as its file: memory is a stated multiple of it."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import Piece, Tally, place_of, replace

from penstock import pack
from penstock.formats import get_format
from penstock.store import LocalStore

GOLDEN = Path(__file__).parent.parent / "golden" / "modalities" / "tokenizers" / "bpe2" / "tokenizer.json"
LINE_BYTES = 24 << 20


class ByteEngine:
    """An id a byte, which is the most that a text can give."""

    def encode(self, texts: Any) -> Any:
        ids = [np.frombuffer(text, np.uint8).astype(np.uint32) for text in texts]
        return (ids[0] if len(ids) == 1 else np.concatenate(ids)), np.array(list(map(len, ids)), np.int64)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "load_engine", lambda name, spec: ByteEngine())


class Sink:
    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size_bytes = 0
        self.keep = True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.size_bytes += len(view)
        if self.keep:
            self.pieces.append(bytes(view))
        return len(view)


def tally(token_bytes: int, eos_id: int, sink: Any) -> Any:
    class Spec:
        kind = "tiktoken"

    class Job:
        field, engine, skip, excluded, keep_map, fill_in = "text", "gigatoken", False, {}, False, None
        spec = Spec()

    Spec.token_bytes, Spec.eos_id = token_bytes, eos_id  # type: ignore[attr-defined]
    task: Any = None
    job: Any = Job()
    one = Tally(job, task, sink)
    one.begin(Piece(0, place_of("a.jsonl"), 0, 0, 0))
    return one


def test_packing_takes_at_most_eight_times_a_line(engine: None) -> None:
    block = json.dumps({"text": "x" * LINE_BYTES}).encode() + b"\n"
    sink: Any = Sink()
    sink.keep = False
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tally(4, 0, sink).add(0, block)
        taken_bytes = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert sink.size_bytes == 4 * (LINE_BYTES + 1)
    assert taken_bytes < 7 * LINE_BYTES + (16 << 20)  # and the block itself


@pytest.mark.parametrize("token_bytes", [1, 2, 4])
@pytest.mark.parametrize("eos_id", [0, ord("x")])
def test_long_documents_give_the_same_bytes(
    token_bytes: int, eos_id: int, engine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["x" * 50, "abc" * 41, "y", "yx" * 30]
    block = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)
    found: list[Any] = []
    for long in (1 << 20, 7):
        replace(monkeypatch, "long_tokens", long)
        sink: Any = Sink()
        one = tally(token_bytes, eos_id, sink)
        one.add(0, block)
        found.append(
            (
                b"".join(sink.pieces),
                np.concatenate(one.runs).tolist(),
                max(run.max_token_id for run in one.documents.finish()),
            )
        )
    assert found[0] == found[1]


def test_a_long_line_by_the_real_road(tmp_path: Path) -> None:
    text = "the quick brown fox " * 100_000
    (tmp_path / "x.jsonl").write_text(json.dumps({"text": text}) + "\n" + json.dumps({"text": "a"}) + "\n")
    report = pack(tmp_path / "x.jsonl", tmp_path / "x.pbin", tokenizer=GOLDEN, workers=1)
    assert report.documents == 2
    findings = get_format("pbin").check(LocalStore(), str(tmp_path / "x.pbin"), _options(), "full")
    assert [one for one in findings if one.severity == "error"] == []


def _options() -> Any:
    from penstock.types import OpenOptions

    return OpenOptions()
