"""Optional packages: the import, or an error that names the extra."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from penstock._optional import require
from penstock.errors import MissingExtra


def test_what_is_installed_is_imported() -> None:
    assert require("json", extra="none") is json
    assert require("os.path", extra="none") is sys.modules["os.path"]


def test_what_is_missing_names_the_extra() -> None:
    with pytest.raises(MissingExtra) as caught:
        require("no_such_package.inner", extra="tokenize")
    assert "no_such_package" in str(caught.value)
    assert "pip install 'penstock[tokenize]'" in str(caught.value)
    assert isinstance(caught.value, ImportError)


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
