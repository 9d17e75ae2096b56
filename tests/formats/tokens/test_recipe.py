"""The token format that CONTRIBUTING shows passes the suite of token formats as it stands there."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

import penstock as ps
from penstock import formats
from penstock.testing.tokens import TokenFormatSuite

PAGE = Path(__file__).parents[3] / "CONTRIBUTING.md"
MODULE = "penstock.formats.tokens.ends"


def code() -> str:
    """Return the code block of the section on token formats."""
    found = re.search(r"^### A token format$.*?^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.fixture(autouse=True, scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    file = tmp_path_factory.mktemp("recipe") / "ends.py"
    file.write_text(code())
    spec = importlib.util.spec_from_file_location(MODULE, file)
    assert spec is not None
    assert spec.loader is not None
    with pytest.MonkeyPatch.context() as patched:
        module = importlib.util.module_from_spec(spec)
        patched.setitem(sys.modules, MODULE, module)
        spec.loader.exec_module(module)
        patched.setitem(formats.BUILT_IN, "ends", f"{MODULE}:FORMAT")
        patched.setitem(formats.SUFFIXES, "ends", (".ends",))
        yield


class TestEnds(TokenFormatSuite):
    format = "ends"
    suffix = ".ends"
    options: ClassVar = {"token_bytes": 2}
    widths: ClassVar = {2: {"token_bytes": 2}, 4: {"token_bytes": 4}}


def test_is_short() -> None:
    assert len(code().splitlines()) < 200


def test_convert(tmp_path: Path) -> None:
    documents = [[1, 2, 3], [], [4, 3]]
    with ps.create(tmp_path / "a.ends", format="ends", token_bytes=2, eos_id=3) as writer:
        for document in documents:
            writer.write({"tokens": document})
    ps.convert(tmp_path / "a.ends", tmp_path / "b.pbin")
    ps.convert(tmp_path / "b.pbin", tmp_path / "c.ends")
    assert (tmp_path / "c.ends").read_bytes() == (tmp_path / "a.ends").read_bytes()
    assert [one["tokens"].tolist() for one in ps.open(tmp_path / "c.ends")] == documents
    assert ps.verify(tmp_path / "c.ends", depth="full", vocab_size=5) == []
    assert [one.code for one in ps.verify(tmp_path / "c.ends", vocab_size=4)] == ["ends.token-range"]
