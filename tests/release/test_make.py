"""What a release is made of, and that a trial leaves the tree as it is."""

from __future__ import annotations

import io
import subprocess
import tarfile
import zipfile
from pathlib import Path

import archives
import make
import pytest

TRACKED = ["README.md", "pyproject.toml", "src/penstock/__init__.py", "src/penstock/py.typed", "tests/test_a.py"]
WHEEL = [
    "penstock/__init__.py",
    "penstock/py.typed",
    *(
        f"penstock_data-1.0.dist-info/{name}"
        for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    ),
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small repository with files that are not tracked."""
    root = tmp_path / "tree"
    for name, text in {
        ".gitignore": ".venv/\n",
        "CHANGELOG.md": "# Changelog\n",
        "changes/a.added.md": "A.\n",
        "src/penstock/__init__.py": '"""It."""\n\n__version__ = "0.1.0"\n',
        "tests/ü name.py": "",
        "gone.py": "",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for command in (("init", "-q"), ("add", "-A")):
        subprocess.run(["git", *command], cwd=root, check=True)
    (root / "gone.py").unlink()
    (root / ".venv").mkdir()
    (root / ".venv" / "x.py").write_text("")
    (root / "notes.txt").write_text("")
    return root


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(folder).parts
    }


def test_a_copy_of_the_tracked_files_is_prepared(tree: Path, tmp_path: Path) -> None:
    before, copy = files_in(tree), tmp_path / "copy"
    names = make.copy_tracked(tree, copy)
    assert sorted(names) == sorted(files_in(copy))
    assert set(names) == set(before) - {".venv/x.py", "notes.txt"}
    make.prepare(copy, "0.2.0.dev0", "2026-11-22")
    assert make.stated_version(copy) == "0.2.0.dev0"
    assert "## 0.2.0.dev0 - 2026-11-22\n\n### Added\n\n- A.\n" in (copy / "CHANGELOG.md").read_text()
    assert not (copy / "changes").exists()
    assert files_in(tree) == before


def test_prepared_again_it_is_the_same(tree: Path) -> None:
    make.prepare(tree, "0.2.0", "2026-11-22")
    before = files_in(tree)
    make.prepare(tree, "0.2.0", "2026-12-24")
    assert files_in(tree) == before


@pytest.mark.parametrize("version", ["0.2", "0.2.0", "0.2.0.dev0", "1.0rc1", "1.0.post2"])
def test_versions(version: str) -> None:
    assert make.VERSION.fullmatch(version)


@pytest.mark.parametrize("version", ["", "v0.2.0", "0.2.0-dev", "0.2.0.dev", "next", "0.2.0 "])
def test_what_is_no_version_is_refused(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert not make.VERSION.fullmatch(version)
    if version:
        with pytest.raises(SystemExit) as ended:
            make.main(["--version", version])
        assert ended.value.code == 2
        assert "is not a version" in capsys.readouterr().err


def test_the_sdist_is_the_tracked_files() -> None:
    assert list(archives.sdist_findings([*TRACKED, "PKG-INFO"], TRACKED)) == []
    found = list(archives.sdist_findings([*TRACKED[1:], "PKG-INFO", ".venv/x.py", "src/a/__pycache__/b.pyc"], TRACKED))
    assert found == [
        "the sdist lacks README.md",
        "the sdist has an extra file: .venv/x.py",
        "the sdist has an extra file: src/a/__pycache__/b.pyc",
    ]


def test_the_wheel_is_the_package_alone() -> None:
    assert list(archives.wheel_findings(WHEEL, TRACKED, "1.0")) == []
    found = list(archives.wheel_findings([*WHEEL[1:], "tests/test_a.py", "penstock/x.pyc"], TRACKED, "1.0"))
    assert found == [
        "the wheel lacks penstock/__init__.py",
        "the wheel has an extra file: penstock/x.pyc",
        "the wheel has an extra file: tests/test_a.py",
    ]
    assert any(
        "lacks penstock_data-1.1.dist-info/WHEEL" in one for one in archives.wheel_findings(WHEEL, TRACKED, "1.1")
    )


def test_names_in_archives(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("penstock-1.0/src/a.py"), io.BytesIO())
        folder = tarfile.TarInfo("penstock-1.0/src")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr("penstock/a.py", "")
    assert archives.sdist_names(tmp_path / "a.tar.gz") == ["src/a.py"]
    assert archives.wheel_names(tmp_path / "a.whl") == ["penstock/a.py"]
