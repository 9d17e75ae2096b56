"""Programs written for MosaicML Streaming run on both packages, by one changed word: the name of the package."""

from __future__ import annotations

from pathlib import Path

import moved
import pytest

CHANGE = (r"^(\s*from )streaming\b", r"\1penstock.compat.streaming")


@pytest.mark.parametrize("name", ["multi_stream_trainer", "images_and_labels", "custom_encoding"])
def test_a_program(name: str, tmp_path: Path) -> None:
    moved.require_equal("streaming", moved.programs(f"streaming_{name}", CHANGE, tmp_path), tmp_path)
