"""Energon's files, and where its fixtures stand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parent.parent / "golden" / "energon-loading"
MDS = GOLDEN / "data" / "mds"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Joins keep their rows in the cache folder."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def expected() -> dict[str, Any]:
    """What Energon documents, by case."""
    return json.loads((GOLDEN / "expected.json").read_text())["cases"]
