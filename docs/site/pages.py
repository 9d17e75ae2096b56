"""Write the pages of the documentation site, from the docs, the docstrings and the measured results.

python docs/site/pages.py build/docs    # then: mkdocs build --strict --config-file build/docs/mkdocs.yml

A broken link and a public name without a docstring are errors.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

from commands import cli_page  # noqa: E402
from reference import reference_pages  # noqa: E402
from results import results_page  # noqa: E402
from url_tables import tables  # noqa: E402

LINK = re.compile(r"(\[[^\]\n]*(?:\n[^\]\n]*)?\])\(([^)\s]+)\)")
PICTURE = re.compile(r"!\[[^]]*\]\(([^)]*\.svg)\)")
NAME = re.compile(r"\bps\.[A-Za-z_]+")
HIDDEN = re.compile(r"^<!--\n.*?^-->\n", re.MULTILINE | re.DOTALL)
"""Comments of several lines: the setup of an example, which the tests run."""
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
PROJECT = ("ARCHITECTURE", "CONTRIBUTING", "SECURITY", "CHANGELOG")
TUTORIALS = ("text-to-model", "messy-data", "images", "resume", "existing-data")
GUIDES: dict[str, tuple[str, ...]] = {
    "Prepare": ("pack", "chat", "tokenized", "convert", "transform", "clusters"),
    "Train": ("loader", "frameworks", "mixing", "recipes", "remote"),
    "Inspect": ("inspect", "view", "reports"),
    "Remove data": ("remove-data", "takedown"),
    "Other tools": ("modalities", "modalities-commands", "streaming", "energon", "energon-training"),
    "Extend": ("plugins",),
}
"""Guides in the order of the navigation. Others come last, under More."""


def main(target: Path) -> None:
    """Write all pages and the configuration of mkdocs to `target`."""
    shutil.rmtree(target, ignore_errors=True)
    places = page_places()
    texts = {source: with_pictures(source.read_text(), source) for source in places}
    pages = {place: linked(texts[source], source, places) for source, place in places.items()}
    reference, reference_nav = reference_pages()
    pages = {place: text + names_of_page(place, text, reference) for place, text in pages.items()} | reference
    pages["cli.md"] = cli_page()
    pages["urls.md"] += "\n" + tables(ROOT / "tests/urls/cells.json")
    pages["measured.md"] = results_page(ROOT / "bench/results.json")
    for place, text in pages.items():
        file = target / "pages" / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for one in (ROOT / "docs").glob("*/pictures/*.png"):
        copy = target / "pages" / one.relative_to(ROOT / "docs")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(one, copy)
    for one in (HERE / "style.css", HERE / "offline.js"):
        shutil.copy(one, target / "pages" / one.name)
    config = yaml.safe_load((HERE / "mkdocs.yml").read_text())
    config |= {
        "docs_dir": "pages",
        "site_dir": "site",
        "nav": _nav(pages, reference_nav),
        "hooks": [str(HERE / "hooks.py")],
    }
    python = next(one for one in config["plugins"] if "mkdocstrings" in one)["mkdocstrings"]["handlers"]["python"]
    python["paths"] = [str(ROOT / "src")]
    python["options"]["extensions"] = [str(HERE / "separate_names.py")]
    (target / "mkdocs.yml").write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
    print(f"{len(pages)} pages in {target}/pages")


def page_places() -> dict[Path, str]:
    """Return the page in the site of each file in the repository that has one."""
    docs = ROOT / "docs"
    places = {HERE / "start.md": "index.md"}
    places |= {file: str(file.relative_to(docs)) for file in docs.glob("*.md")}
    for folder in ("tutorial", "guide", "formats"):
        places |= {file: str(file.relative_to(docs)) for file in (docs / folder).glob("*.md")}
    return places | {ROOT / f"{name}.md": f"project/{name.lower()}.md" for name in PROJECT}


def with_pictures(text: str, source: Path) -> str:
    """Return a page with its SVG pictures inline, so that they follow the site's switch between light and dark."""

    def inline(found: re.Match[str]) -> str:
        return f"<div>{' '.join((source.parent / found[1]).read_text().split())}</div>"

    return PICTURE.sub(inline, text)


def linked(text: str, source: Path, places: dict[Path, str]) -> str:
    """Return a page with links to pages of the site; links to other files of the repository become plain text."""

    def one(found: re.Match[str]) -> str:
        target, _, anchor = found[2].partition("#")
        if target.startswith("site:"):  # a generated page
            near = os.path.relpath(target.removeprefix("site:"), os.path.dirname(places[source]) or ".")
            return f"{found[1]}({near}{'#' + anchor if anchor else ''})"
        if not target or "://" in target or target.startswith("mailto:"):
            return found[0]
        file = (source.parent / target).resolve()
        if file.is_dir() and file / "index.md" in places:
            file /= "index.md"
        if file not in places and file.name == "README.md":
            file = HERE / "start.md"
        if file in places:
            near = os.path.relpath(places[file], os.path.dirname(places[source]) or ".")
            return f"{found[1]}({near}{'#' + anchor if anchor else ''})"
        if file.suffix == ".png" and file.is_file():
            near = os.path.relpath(file.relative_to(ROOT / "docs"), os.path.dirname(places[source]) or ".")
            return f"{found[1]}({near})"
        if not file.exists():
            raise SystemExit(f"{source.relative_to(ROOT)}: a link to nothing: {found[2]}")
        return found[1][1:-1]

    parts = FENCE.split(HIDDEN.sub("", text))
    return "".join(part if part.startswith("```") else LINK.sub(one, part) for part in parts)


def names_of_page(place: str, text: str, reference: Collection[str]) -> str:
    """Return the end of a tutorial or guide: links to the reference of each public name in it."""
    if not place.startswith(("tutorial/", "guide/")):
        return ""
    names = [name for name in sorted({*NAME.findall(text)}) if f"reference/{name}.md" in reference]
    links = ", ".join(f"[`{name}`](../reference/{name}.md)" for name in names)
    return f"\n\n**Reference:** {links}.\n" if links else ""


def _nav(pages: dict[str, str], reference: list[Any]) -> list[Any]:
    known = {"limits", *(name for names in GUIDES.values() for name in names)}
    rest = tuple(sorted(Path(one).stem for one in pages if one.startswith("guide/") and Path(one).stem not in known))
    guides = [
        {title: [f"guide/{name}.md" for name in names]}
        for title, names in ({**GUIDES, "More": rest} if rest else GUIDES).items()
    ]
    formats = sorted(one for one in pages if one.startswith("formats/") and one != "formats/index.md")
    project = [f"project/{name.lower()}.md" for name in PROJECT]
    return [
        {"Start": "index.md"},
        {"Concepts": ["concepts.md", "glossary.md"]},
        {"Tutorials": [f"tutorial/{name}.md" for name in TUTORIALS]},
        {"Guides": guides},
        {"Formats": ["formats/index.md", *({Path(one).stem: one} for one in formats), {"Object stores": "urls.md"}]},
        {"Commands": ["cheatsheet.md", "cli.md"]},
        {"Reference": reference},
        {"Troubleshooting": ["troubleshooting.md", "errors.md", "guide/limits.md"]},
        {"Performance": ["measured.md", {"At scale": "scale.md"}]},
        {"Project": ["stability.md", *project]},
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
