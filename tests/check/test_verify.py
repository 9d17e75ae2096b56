"""verify, repair and info: the parts that no format owns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.internals import write_side_file

import penstock as ps
from penstock.check import repair, summarise, verify
from penstock.errors import ConfigError, NotFound, Unsupported


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    path = tmp_path / "c.pbin"
    with ps.create(path, format="pbin", token_bytes=2, eos_id=0) as writer:
        for n_tokens in (3, 5, 2):
            writer.write({"tokens": np.r_[np.arange(1, n_tokens), 0].astype(np.uint16)})
    return path


def test_a_sound_file_has_no_finding_at_any_depth(packed: Path) -> None:
    assert [verify(packed, depth=depth) for depth in ("quick", "sample", "full")] == [[], [], []]


def test_a_flipped_bit_is_found_at_full_depth(packed: Path) -> None:
    data = bytearray(packed.read_bytes())
    data[14] ^= 1
    packed.write_bytes(bytes(data))
    findings = verify(packed, depth="full")
    assert any(one.severity == "error" for one in findings) or any("side" in one.code for one in findings)
    assert all(one.fix for one in findings)


def test_unknown_depth_and_option_are_refused_by_name(packed: Path) -> None:
    with pytest.raises(ConfigError, match="deep"):
        verify(packed, depth="deep")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="vocabulary"):
        verify(packed, vocabulary=7)


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    for ask in (verify, repair, summarise):
        with pytest.raises(NotFound, match="nowhere"):
            ask(tmp_path / "nowhere.pbin")


def test_what_no_format_knows_is_named_with_reasons(tmp_path: Path) -> None:
    path = tmp_path / "noise.xyz"
    path.write_bytes(b"\x00\xff" * 40)
    with pytest.raises(Unsupported, match="pbin:"):
        verify(path)


def test_summary_counts_without_reading_data(packed: Path) -> None:
    found = summarise(packed)
    assert (found["format"], found["samples"], found["tokens"], found["token_bytes"]) == ("pbin", 3, 10, 2)
    assert found["eos_id"] == 0
    assert found["size_bytes"] == packed.stat().st_size
    assert found["manifest"]["num_tokens"] == 10


def test_a_side_file_can_be_made_for_foreign_data(packed: Path) -> None:
    side = Path(f"{packed}.penstock")
    ours = side.read_bytes()
    side.unlink()
    assert summarise(packed)["manifest"] is None
    assert write_side_file(packed, eos_id=0) == str(side)
    made = summarise(packed)["manifest"]
    assert made["num_tokens"] == 10
    assert made["digest"].encode() in ours
    assert verify(packed, depth="full") == []


def test_repair_does_nothing_to_sound_data(packed: Path) -> None:
    before = packed.read_bytes()
    assert repair(packed, write=True) == []
    assert packed.read_bytes() == before
