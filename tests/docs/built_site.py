"""The site as `make docs` built it; not part of `make test`."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import penstock
from penstock import errors

SITE = Path(__file__).parents[2] / "build" / "docs" / "site"
FETCHED = re.compile(
    r"(?:src|srcset)=\"(?:https?:)?//|@import|url\([\"']?(?:https?:)?//|<link[^>]*href=\"(?:https?:)?//"
)
PAGE_SECONDS = 60


def text_of(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", (SITE / page).read_text()))


@pytest.mark.parametrize("name", penstock.__all__)
def test_each_name_of_the_facade_has_a_page(name: str) -> None:
    assert f"ps.{name}" in text_of(f"reference/ps.{name}.html")


def test_arguments_stand_there() -> None:
    page = text_of("reference/ps.Shuffle.html")
    for argument in ("seed", "mode", "lanes", "open_blocks", "block_size"):
        assert re.search(rf"^\s*{argument}\s*$", page, re.M), argument


def test_every_code_of_an_error_is_an_anchor() -> None:
    page = (SITE / "errors.html").read_text()
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "exit_status")]
    assert [kind.code for kind in kinds if f'id="{kind.code}"' not in page] == []


def test_nothing_is_fetched_when_a_page_is_read() -> None:
    files = [file for file in SITE.rglob("*") if file.suffix in (".html", ".css")]
    assert len(files) > 100
    assert [str(file) for file in files if FETCHED.search(file.read_text())] == []


def test_the_search_knows_names_and_codes() -> None:
    index = json.loads((SITE / "search" / "search_index.json").read_text())
    titles = {html.unescape(re.sub(r"<[^>]+>", "", one["title"])).strip() for one in index["docs"]}
    assert {"not-found", "Pack text", "penstock pack"} <= titles
    assert any("ps.Shuffle" in title for title in titles)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser is installed")
def test_a_browser_finds_a_name_without_a_network(tmp_path: Path) -> None:
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", f"--user-data-dir={tmp_path}"]
    command += ["--virtual-time-budget=8000", "--dump-dom", f"file://{SITE}/index.html?q=Shuffle"]
    page = subprocess.run(command, capture_output=True, text=True, timeout=PAGE_SECONDS, check=True).stdout
    assert re.search(
        r'class="md-search-result__link"[^>]*href="[^"]*ps\.Shuffle\.html|href="[^"]*ps\.Shuffle\.html', page
    )
    assert "<mark" in page
