"""Names at first use: each listed once, found, cached, and a misspelt one told apart."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import _keywords, formats
from penstock.errors import ConfigError
from penstock.prepare.energon.run import prepare_webdataset

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
    script = "import penstock, penstock.convert, penstock.check.verification; print(callable(penstock.convert))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout == b"True\n"


def test_a_star_import() -> None:
    script = "from penstock.prepare import *; print(pack.__name__, PackReport.__name__)"
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout == b"pack PackReport\n"
    )


# --- what an editor shows ---------------------------------------------------------------------------------------------

ANY_NAME = {"WithAux": "names of the sources that are added, which are the user's own"}
"""Public callables that take keywords of any name → the reason."""


def signatures() -> Iterator[tuple[str, inspect.Signature]]:
    for name in penstock.__all__:
        one = getattr(penstock, name)
        if inspect.isfunction(one):
            yield name, inspect.signature(one)
        elif inspect.isclass(one):
            yield name, inspect.signature(one.__init__)
            methods = ((f"{name}.{key}", value) for key, value in vars(one).items() if not key.startswith("_"))
            yield from ((key, inspect.signature(value)) for key, value in methods if inspect.isfunction(value))


def test_every_argument_of_a_public_name_has_a_name_and_a_type() -> None:
    seen = 0
    for name, signature in signatures():
        for one in list(signature.parameters.values()):
            if one.name == "self":
                continue
            seen += 1
            assert one.annotation is not inspect.Parameter.empty, f"{name}({one.name})"
            if one.kind is inspect.Parameter.VAR_KEYWORD and name not in ANY_NAME:
                assert str(one.annotation).startswith("Unpack["), f"{name}(**{one.name}: {one.annotation})"
        assert signature.return_annotation is not inspect.Signature.empty, name
    assert seen > 200
    assert set(ANY_NAME) <= set(penstock.__all__)


def test_keywords_are_those_of_what_takes_them(tmp_path: Path) -> None:
    opening = set(inspect.signature(penstock.open).parameters) - {"path", "format"}
    # Verbs take samples as they are stored.
    assert set(_keywords.Opening.__annotations__) == opening - {"decode"}
    assert opening - {"mask_tokens", "columns", "planes", "decode"} <= set(_keywords.Converting.__annotations__)
    assert {"drop_planes"} <= set(_keywords.Converting.__annotations__) & set(_keywords.Reshaping.__annotations__)
    prepare = set(inspect.signature(prepare_webdataset).parameters) - {"path", "dataset", "media"}
    assert set(_keywords.Preparing.__annotations__) == prepare
    known = {"planes"}  # taken by `create` itself
    for name in formats.BUILT_IN:
        if formats.get_format(name).traits.write:
            with pytest.raises(ConfigError, match="unknown option nonsense") as raised:
                penstock.create(tmp_path / name, format=name, **{"nonsense": 1})  # type: ignore[call-arg]
            known |= set(str(raised.value.expected).split(", ")) - {"no options"}
    assert set(_keywords.Writing.__annotations__) == known


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
