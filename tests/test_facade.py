"""Names at first use: each listed once, found, cached, and a misspelt one told apart."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from penstock import formats

FACADES = (
    "penstock",
    "penstock.prepare",
    "penstock.testing",
    "penstock.compat.energon",
    "penstock.compat.modalities",
    "penstock.compat.streaming",
)


@pytest.mark.parametrize("package", FACADES)
def test_a_misspelt_name_is_told_the_right_one(package: str) -> None:
    module = importlib.import_module(package)
    longest = max(module.__all__, key=len)
    with pytest.raises(
        AttributeError, match=rf"module '{package}' has no attribute '{longest}s'; did you mean '{longest}'"
    ):
        getattr(module, longest + "s")
    with pytest.raises(AttributeError, match=r"has no attribute 'qqqqqq'$"):
        _ = module.qqqqqq
    assert not hasattr(module, "__wrapped__")


@pytest.mark.parametrize("package", FACADES)
def test_names_are_those_of_the_modules_that_define_them(package: str) -> None:
    module = importlib.import_module(package)
    assert dir(module) == module.__all__ == sorted(set(module.__all__))
    for name in module.__all__:
        assert getattr(module, name) is getattr(module, name)
        assert name in vars(module), "asked for once, then an attribute like others"


def test_a_function_keeps_its_name_from_the_module_that_is_called_alike() -> None:
    script = "import penstock, penstock.convert, penstock.check.verify; print(callable(penstock.convert))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout == b"True\n"


def test_a_star_import() -> None:
    script = "from penstock.prepare import *; print(pack.__name__, PackReport.__name__)"
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout == b"pack PackReport\n"
    )


BY_NAME = """
import pickle, sys
import penstock.formats.pbin, penstock.formats.xsv
from penstock.formats import flat_tokens, get_format
from penstock.formats.pbin.source import PbinSource
from penstock.formats.tokens.pbin import source
import penstock.formats.tokens.pbin as real
assert penstock.formats.pbin is real and PbinSource is source.PbinSource
assert real.__spec__.name == real.__name__ == "penstock.formats.tokens.pbin"
assert penstock.formats.xsv.CSV is get_format("csv") and flat_tokens.FORMAT is get_format("flat-tokens")
assert pickle.loads(b"cpenstock.formats.pbin.source\\nPbinSource\\n.") is PbinSource
try:
    import penstock.formats.nothing
except ModuleNotFoundError as error:
    print(error.name)
"""


def test_a_format_is_imported_by_its_name_in_whatever_family() -> None:
    done = subprocess.run([sys.executable, "-c", BY_NAME], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "penstock.formats.nothing\n", "")


@pytest.mark.parametrize("name", sorted({name.replace("-", "_") for name in formats.BUILT_IN} - {"csv", "tsv"}))
def test_every_format_is_imported_by_its_name(name: str) -> None:
    module = importlib.import_module(f"penstock.formats.{name}")
    assert module is importlib.import_module(module.__name__)
    assert module.__name__.rpartition(".")[2] == {"token_files": "folder", "jsonl_files": "several"}.get(name, name)
