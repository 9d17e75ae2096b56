"""Packings say what they need, where they are given rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import ConfigError

IDS = {"prefix_id": 5, "middle_id": 6, "suffix_id": 7, "seed": 1}
PACKINGS: dict[str, Callable[[Any], Any]] = {
    "Chunk": ps.Chunk(4),
    "Whole": ps.Whole(4),
    "BestFit": ps.BestFit(4),
    "MegatronBlocks": ps.MegatronBlocks(4),
    "FillInTheMiddle": lambda source: ps.FillInTheMiddle(source, rate=0.5, **IDS),
}


@pytest.mark.parametrize("name", PACKINGS)
def test_rows_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n' * 9)
    rows: Any = ps.open(tmp_path / "rows.jsonl")
    with pytest.raises(ConfigError, match=f"{name} needs token documents.*penstock pack"):
        PACKINGS[name](rows)


@pytest.mark.parametrize("name", PACKINGS)
def test_windows_are_refused(name: str, tmp_path: Path) -> None:
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
        writer.write({"tokens": [1, 2, 3, 4, 5, 6, 7, 0]})
    tokens: Any = ps.open(tmp_path / "a.pbin")
    windows = ps.Chunk(4)(tokens)
    with pytest.raises(ConfigError, match=f"{name} needs token documents: found a Windows"):
        PACKINGS[name](windows)


def test_a_stream_is_not_concatenated(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n' * 9)
    rows: Any = ps.open(tmp_path / "rows.jsonl")
    lists: list[Any] = [[ps.Shuffle(rows, 1)], [rows, ps.Shuffle(rows, 1)]]
    for given in lists:
        with pytest.raises(ConfigError, match="only finite sources can be concatenated: found a OrderedStream"):
            ps.Concat(given)
