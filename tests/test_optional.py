"""Optional packages: the import, or an error that names the extra."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from penstock._optional import DISTRIBUTION, require
from penstock.errors import MissingExtra


def test_what_is_installed_is_imported() -> None:
    assert require("json", extra="none") is json
    assert require("os.path", extra="none") is sys.modules["os.path"]


def test_what_is_missing_names_the_extra() -> None:
    with pytest.raises(MissingExtra) as caught:
        require("no_such_package.inner", extra="tokenize")
    assert "no_such_package" in str(caught.value)
    assert "extra 'tokenize'" in str(caught.value)
    install = str(caught.value).split("pip install ")[1]
    assert shlex.split(install) == ["gigatoken<0.11,>=0.10", "sentencepiece", "tiktoken", "tokenizers", "zstandard"]
    assert isinstance(caught.value, ImportError)


def test_without_metadata_the_package_itself_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock._optional.DISTRIBUTION", "no-such-distribution")
    with pytest.raises(MissingExtra, match="pip install no_such_package"):
        require("no_such_package.inner", extra="tokenize")


def test_missing_part_of_a_package_is_missing_too() -> None:
    with pytest.raises(MissingExtra):
        require("json.no_such_part", extra="x")


def test_an_error_inside_the_package_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_broken_package.py").write_text("import another_missing_package\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError) as caught:
        require("half_broken_package", extra="x")
    assert not isinstance(caught.value, MissingExtra)
    assert caught.value.name == "another_missing_package"


ROOT = Path(__file__).parent.parent
FOREIGN = re.compile(r"pip3?\s+install[^\n`]*?[ '\"]penstock(?![-_\w./])")


def test_nothing_names_the_package_of_another_project() -> None:
    """On the package index `penstock` is somebody else's project: no text, script or metadata asks for it."""
    assert FOREIGN.search("pip install 'penstock[zarr]'")
    assert FOREIGN.search("pip install penstock")
    assert not FOREIGN.search("pip install penstock-data")
    paths = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "pyproject.toml")]
    for folder in ("src", "docs", "examples", "bench", "release", "tests", "changes"):
        paths += [
            path
            for path in (ROOT / folder).rglob("*")
            if path.suffix in {".py", ".md", ".toml", ".txt", ".yaml", ".html"}
        ]
    named = [path for path in paths if path != Path(__file__) and FOREIGN.search(path.read_text("utf-8", "replace"))]
    assert named == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["name"] == DISTRIBUTION
    wanted = [one for needs in project["optional-dependencies"].values() for one in needs]
    assert [one for one in wanted if re.match(r"penstock(?!-data)", one)] == []
