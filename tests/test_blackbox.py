"""Black-box tests stay independent of the package's internals."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import internals
from tests.blackbox import INTERNAL, TESTS, is_black_box, is_free, violations

OWN = {"blackbox.py", "internals.py", "test_blackbox.py"}


def files() -> list[Path]:
    """All modules of the tests but these."""
    names = (path.relative_to(TESTS) for path in TESTS.rglob("*.py"))
    return [TESTS / one for one in sorted(names) if one.parts[0] != "golden" and one.as_posix() not in OWN]


def test_black_box_tests_use_public_names_and_the_helper_module_only() -> None:
    """Use tests/internals.py, or list a file that tests an internal function in `INTERNAL`."""
    found = {path.relative_to(TESTS).as_posix(): violations(path) for path in files() if not _is_free(path)}
    assert {name: one for name, one in found.items() if one} == {}


def test_listed_files_exist_and_use_internals() -> None:
    assert sorted(name for name in INTERNAL if not (TESTS / name).exists() or not violations(TESTS / name)) == []


@pytest.mark.parametrize(
    "line",
    [
        "from penstock.store.place import place_of",
        "    from penstock.formats import (\n    _proof,\n)",
        "import penstock.look.purge",
        "patch.setattr('penstock.cli._output.SECONDS', 1)",
        "code = 'from penstock.cli.main import main; main()'",
        "source._index",
        "assert not (tmp_path / '.out.work').exists()",
        "name.endswith('.staged')",
        "side = f'{path}.penstock.next'",
        "'a.lock'",
    ],
)
def test_what_is_internal(line: str, tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(line.lstrip())
    assert violations(tmp_path / "test_one.py") != ()


@pytest.mark.parametrize(
    "line",
    [
        "from penstock.store import resolve",
        "from penstock.testing.memory import MemorySource",
        "ps.check.verify(ps.convert(a, b))",
        "'token-files.work'",
        "'side.penstock'",
        "self._own",
        "os._exit(1)",
        "from tests.internals import place_of",
    ],
)
def test_what_is_public(line: str, tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(line)
    assert violations(tmp_path / "test_one.py") == ()


def test_names_of_the_helper_module_exist() -> None:
    for name in internals.names():
        assert getattr(internals, name) is not None
    for name in internals.replaceable():
        assert all(hasattr(owner, attribute) for owner, attribute in internals.owners_of(name)), name


def test_folders_of_unit_tests_are_marked_file_by_file() -> None:
    assert is_black_box(TESTS / "formats/shards/test_golden.py")
    assert not is_black_box(TESTS / "store/test_leftovers.py")


def _is_free(path: Path) -> bool:
    return is_free(path.relative_to(TESTS).as_posix())
