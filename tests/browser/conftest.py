"""One browser, and one viewer of a shelf, for all tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser.corpus import TOKENIZER, make_shelf
from tests.browser.drive import browser, viewer


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of its own, for this process and the viewer's."""
    os.environ["PENSTOCK_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    return Path(os.environ["PENSTOCK_CACHE"])


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Path]:
    """Datasets of each kind."""
    folder = Path(tempfile.gettempdir()) / "river"  # a short path, for pictures
    if folder.exists():
        folder = tmp_path_factory.mktemp("made") / "river"
    make_shelf(folder)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def url(shelf: Path) -> Iterator[str]:
    """The first page of the shelf."""
    with viewer(shelf, options=("--tokenizer", str(TOKENIZER))) as found:
        yield found


@pytest.fixture(scope="session")
def driver() -> Iterator[Any]:
    """The browser."""
    with browser() as made:
        yield made


@pytest.fixture(scope="session")
def pictures() -> Path:
    """Where pictures go."""
    folder = Path(os.environ.get("BROWSER_PICTURES", "build/browser"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
