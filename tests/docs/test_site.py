"""What lays out the site refuses broken links, names without docstrings, and pages that fetch from elsewhere."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from types import ModuleType

import pytest

SITE = Path(__file__).parents[2] / "docs" / "site"


@pytest.fixture(scope="module")
def site() -> dict[str, ModuleType]:
    path, sys.path = sys.path, [str(SITE), *sys.path]
    try:
        found = {}
        for name in ("docstrings", "hooks", "commands", "reference", "results", "url_tables", "pages"):
            spec = importlib.util.spec_from_file_location(name, SITE / f"{name}.py")
            assert spec is not None
            assert spec.loader is not None
            sys.modules[name] = found[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(found[name])
        return found
    finally:
        sys.path = path


def test_every_link_of_every_page_leads_somewhere(site: dict[str, ModuleType]) -> None:
    pages = site["pages"]
    places = pages.page_places()
    assert len(places) > 40
    assert not any(place.startswith("decisions/") for place in places.values())
    for source in places:
        pages.linked(source.read_text(), source, places)


def test_links(site: dict[str, ModuleType]) -> None:
    pages = site["pages"]
    source, other = pages.ROOT / "docs/guide/pack.md", pages.ROOT / "CONTRIBUTING.md"
    places = {source: "guide/pack.md", other: "project/contributing.md"}
    text = "[a](../../CONTRIBUTING.md#the-house) [b](https://example.org) [c](../../Makefile)\n```\n[d](nowhere)\n```\n"
    expected = "[a](../project/contributing.md#the-house) [b](https://example.org) c\n```\n[d](nowhere)\n```\n"
    assert pages.linked(text, source, places) == expected
    with pytest.raises(SystemExit, match=r"docs/guide/pack\.md: a link to nothing: nowhere\.md"):
        pages.linked("[a](nowhere.md)", source, places)


def test_names_in_a_tutorial_lead_to_their_arguments(site: dict[str, ModuleType]) -> None:
    reference, _ = site["reference"].reference_pages()
    text = (site["pages"].ROOT / "docs/tutorial/text-to-model.md").read_text()
    assert "[`ps.Shuffle`](../reference/ps.Shuffle.md)" in site["pages"].names_of_page("tutorial/a.md", text, reference)
    assert site["pages"].names_of_page("formats/a.md", text, reference) == ""
    assert site["pages"].names_of_page("guide/a.md", "`ps.nothing`", reference) == ""


def test_functions_lead_to_the_types_of_their_results(site: dict[str, ModuleType]) -> None:
    pages, nav = site["reference"].reference_pages()
    assert "[`FindReport`](results.md#penstock.look.find.FindReport)" in pages["reference/ps.find.md"]
    assert "[`Finding`](types.md#penstock.types.Finding)" in pages["reference/ps.verify.md"]
    assert "::: penstock.look.find.Found\n" in pages["reference/results.md"]
    assert [next(iter(one)) for one in nav[1:]] == [*site["reference"].TASKS, "Result types"]


def test_names_that_share_an_entry(site: dict[str, ModuleType]) -> None:
    text = (
        "Do it.\n\nArgs:\n    a, b: both\n        of them.\n    c: one, two.\n\n"
        "Raises:\n    D, E: an error.\n\nNote: x, y: z"
    )
    expected = (
        "Do it.\n\nArgs:\n    a: both\n        of them.\n    b: both\n        of them.\n    c: one, two.\n\n"
        "Raises:\n    D: an error.\n    E: an error.\n\nNote: x, y: z"
    )
    assert site["docstrings"].with_separate_names(text) == expected


def test_a_name_without_a_docstring(site: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    made = types.ModuleType("bare_module")
    exec("class Bare:\n    'Has one.'\n    def method(self): ...\ndef nothing(): ...\n", vars(made))
    monkeypatch.setitem(sys.modules, "bare_module", made)
    missing: list[str] = []
    assert [one.name for one in site["reference"].names_of("bare_module", missing)] == ["Bare", "nothing"]
    assert missing == ["bare_module.Bare.method", "bare_module.nothing"]


def test_pages_that_fetch(site: dict[str, ModuleType]) -> None:
    page = types.SimpleNamespace(url="a/b.html", file=types.SimpleNamespace(src_uri="a/b.md"))
    shim = '<script src="https://unpkg.com/iframe-worker/shim"></script>'
    after = site["hooks"].on_post_page(f'{shim}<a href="https://example.org">', page=page, config=None)
    assert after == '<script src="../offline.js"></script><a href="https://example.org">'
    with pytest.raises(SystemExit, match=r"a/b\.md fetches from elsewhere"):
        site["hooks"].on_post_page('<img src="https://example.org/a.png">', page=page, config=None)


def test_plots(site: dict[str, ModuleType]) -> None:
    page = site["results"].results_page(site["pages"].ROOT / "bench/results.json")
    assert page.count("<svg") > 20
    assert page.count("<svg") == page.count("</svg>")
    assert "nan" not in page.lower().split()


def test_tables_of_urls(site: dict[str, ModuleType]) -> None:
    tables = site["url_tables"].tables(site["pages"].ROOT / "tests/urls/cells.json")
    row = next(line for line in tables.splitlines() if line.startswith("| `convert` (output) | jsonl, "))
    assert row.count("✓") == 7
    assert "| `index` | index next to the file | ✓ | error " in tables
    assert ". Web servers are read-only." in tables
