"""Make a section of `CHANGELOG.md` from `changes/*.md`, in the style of Keep a Changelog.

A fragment is a file `<short-name>.<added|changed|fixed>.md` with one or two sentences, or a list.
"""

from __future__ import annotations

import re
from pathlib import Path

KINDS = {"added": "Added", "changed": "Changed", "fixed": "Fixed"}
_SECTION = re.compile(r"^## ", re.M)
_UNRELEASED = re.compile(r"^## Unreleased\n+(.*?)(?=^## |\Z)", re.M | re.S)


def fragments(folder: Path) -> dict[str, list[str]]:
    """Return kind → texts of its fragments, sorted by file name.

    Raises:
        SystemExit: the name of a fragment has no known kind, or a fragment is empty.
    """
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for path in sorted(folder.glob("*")):
        kind = path.name.removesuffix(".md").rpartition(".")[2]
        if kind not in KINDS or not path.name.endswith(f".{kind}.md"):
            raise SystemExit(f"{path}: a fragment is called <short-name>.<{'|'.join(KINDS)}>.md")
        text = path.read_text(encoding="utf-8").strip()
        if not text:
            raise SystemExit(f"{path}: the fragment is empty")
        found[kind].append(text)
    return found


def section(version: str, date: str, texts: dict[str, list[str]], summary: str = "") -> str:
    """Return the section of a version: its heading, `summary`, and a list for each kind that has fragments."""
    parts = [f"## {version} - {date}", *([summary] if summary else [])]
    for kind, title in KINDS.items():
        if texts[kind]:
            parts.append(f"### {title}\n\n" + "\n".join(map(_item, texts[kind])))
    return "\n\n".join(parts) + "\n"


def compiled(changelog: str, version: str, date: str, texts: dict[str, list[str]]) -> str:
    """Return `changelog` with the section of `version` before those of earlier ones; unchanged if it has one.

    The text of a section "Unreleased" becomes the beginning of the new one.

    Raises:
        SystemExit: there are no changes, or `version` has a section already although there are fragments.
    """
    stands = re.search(rf"^## {re.escape(version)}(?: |$)", changelog, re.M)
    if stands and any(texts.values()):
        raise SystemExit(
            f"CHANGELOG.md already has a section {version}, but changes/ isn't empty: choose a later version"
        )
    if stands:
        return changelog
    if not any(texts.values()):
        raise SystemExit(f"no changes: changes/ is empty, and CHANGELOG.md has no section {version}")
    unreleased = _UNRELEASED.search(changelog)
    summary = unreleased[1].strip() if unreleased else ""
    changelog = _UNRELEASED.sub("", changelog)
    first = _SECTION.search(changelog)
    start = first.start() if first else len(changelog)
    head = changelog[:start].rstrip("\n") + "\n\n"
    return head + section(version, date, texts, summary) + ("\n" + changelog[start:] if first else "")


def _item(text: str) -> str:
    if text.startswith("- "):
        return text
    return "- " + re.sub(r"\n(?=[^\n])", "\n  ", text)
