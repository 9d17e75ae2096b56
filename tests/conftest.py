"""What all tests share: a cache folder of their own, and the golden files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="session", autouse=True)
def cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No test reads or writes the user's cache; child processes inherit the setting."""
    folder = tmp_path_factory.mktemp("penstock-cache")
    before = os.environ.get("PENSTOCK_CACHE")
    os.environ["PENSTOCK_CACHE"] = str(folder)
    yield folder
    if before is None:
        del os.environ["PENSTOCK_CACHE"]
    else:
        os.environ["PENSTOCK_CACHE"] = before


@pytest.fixture(scope="session")
def golden() -> Path:
    """Files that the original tools made; see the README in each folder. Read only."""
    return GOLDEN
