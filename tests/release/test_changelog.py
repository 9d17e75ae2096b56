"""`changes/` becomes a section of CHANGELOG.md."""

from __future__ import annotations

from pathlib import Path

import changelog
import pytest

ROOT = Path(__file__).parent.parent.parent
BEFORE = "# Changelog\n\nFragments are in `changes/`.\n\n## 0.1.0 (not released)\n\nThe first one.\n"
TEXTS = {"added": ["`one`: new.", "Two lines:\nthe second."], "changed": [], "fixed": ["- a\n  b\n- c"]}
SECTION = (
    "## 0.2.0 - 2026-11-22\n\n### Added\n\n- `one`: new.\n- Two lines:\n  the second.\n\n### Fixed\n\n- a\n  b\n- c\n"
)


def test_fragments_by_kind_and_name(tmp_path: Path) -> None:
    for name, text in (("b.added.md", "\nB.\n"), ("a.b.added.md", "A."), ("z.fixed.md", "Z.\n")):
        (tmp_path / name).write_text(text)
    assert changelog.fragments(tmp_path) == {"added": ["A.", "B."], "changed": [], "fixed": ["Z."]}
    assert changelog.fragments(tmp_path / "nothing") == {"added": [], "changed": [], "fixed": []}


@pytest.mark.parametrize(
    ("name", "text"), [("a.removed.md", "x"), ("a.added.txt", "x"), ("added.md", "x"), ("a.fixed.md", " \n")]
)
def test_what_is_no_fragment_is_named(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SystemExit, match=name):
        changelog.fragments(tmp_path)


def test_section() -> None:
    assert changelog.section("0.2.0", "2026-11-22", TEXTS) == SECTION


def test_the_newest_stands_first() -> None:
    head, earlier = BEFORE[: BEFORE.index("## ")], BEFORE[BEFORE.index("## ") :]
    assert changelog.compiled(BEFORE, "0.2.0", "2026-11-22", TEXTS) == head + SECTION + "\n" + earlier
    assert changelog.compiled("# Changelog\n", "0.2.0", "2026-11-22", TEXTS) == "# Changelog\n\n" + SECTION


def test_the_summary_of_what_is_unreleased_comes_first() -> None:
    head, earlier = BEFORE[: BEFORE.index("## ")], BEFORE[BEFORE.index("## ") :]
    before = head + "## Unreleased\n\nBetter.\n\n### More\n\n- It.\n\n" + earlier
    title, _, lists = SECTION.partition("\n\n")
    expected = head + title + "\n\nBetter.\n\n### More\n\n- It.\n\n" + lists + "\n" + earlier
    assert changelog.compiled(before, "0.2.0", "2026-11-22", TEXTS) == expected


def test_again_without_fragments_changes_nothing() -> None:
    after = changelog.compiled(BEFORE, "0.2.0", "2026-11-22", TEXTS)
    nothing: dict[str, list[str]] = {kind: [] for kind in changelog.KINDS}
    assert changelog.compiled(after, "0.2.0", "2026-12-24", nothing) == after
    with pytest.raises(SystemExit, match="choose a later version"):
        changelog.compiled(after, "0.2.0", "2026-12-24", TEXTS)
    for version in ("0.2", "0.2.0.dev0", "0.3.0"):
        with pytest.raises(SystemExit, match="no change"):
            changelog.compiled(after, version, "2026-12-24", nothing)


def test_our_own_fragments() -> None:
    changelog.fragments(ROOT / "changes")
