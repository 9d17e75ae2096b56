"""The registry of formats: names, plug-ins, sniffing, and the verbs `open` and `create`."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import forget_plug_ins

import penstock
from penstock import formats
from penstock.errors import ConfigError, NotFound, Unsupported
from penstock.store import LocalStore, MemoryStore
from penstock.testing.memory import MemorySource
from penstock.types import OpenOptions, Sniff, Traits


class PlugIn:
    """A format from elsewhere, that reads anything that begins with `plug`."""

    name = "plug-in"
    traits = Traits(splits=True, tokens=True, suffixes=(".plug",))

    def sniff(self, store: Any, path: str) -> Sniff:
        fits = store.exists(path) and store.get(path, 0, 4) == b"plug"
        return Sniff(fits, "it begins with plug" if fits else "it does not begin with plug")

    def open(self, store: Any, path: str, options: OpenOptions) -> MemorySource:
        return MemorySource([{"path": path, "options": options}])


@pytest.fixture
def plug_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[PlugIn]:
    module = types.ModuleType("module_of_a_plug_in")
    module.FORMAT = PlugIn()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    points = [
        EntryPoint("plug-in", f"{module.__name__}:FORMAT", formats.ENTRY_POINT_GROUP),
        EntryPoint("pbin", f"{module.__name__}:FORMAT", formats.ENTRY_POINT_GROUP),
    ]
    found = {formats.ENTRY_POINT_GROUP: points}
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: found.get(group, []))
    forget_plug_ins()
    yield module.FORMAT
    forget_plug_ins()


@pytest.mark.parametrize("name", list(formats.BUILT_IN))
def test_built_in_formats(name: str) -> None:
    found = formats.get_format(name)
    assert found.name == name
    assert isinstance(found.traits, Traits)
    assert found.traits.made_by
    for verb in ("sniff", "open", "create", "check", "repair"):
        assert callable(getattr(found, verb))


@pytest.mark.parametrize("name", list(formats.BUILT_IN))
def test_suffixes_are_those_of_the_format(name: str) -> None:
    assert formats.SUFFIXES[name] == formats.get_format(name).traits.suffixes


def test_a_fitting_name_imports_one_format(tmp_path: Path) -> None:
    with penstock.create(tmp_path / "a.pbin", format="pbin", token_bytes=2) as writer:
        writer.write({"tokens": np.array([1], np.uint16)})
    code = (
        "import sys, penstock; penstock.open(sys.argv[1])\n"
        "known = penstock.formats.BUILT_IN\n"
        "print(*(name for name, target in known.items() if target.partition(':')[0] in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.pbin")], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["pbin"]


def test_names_that_fit_formats(plug_in: PlugIn) -> None:
    assert formats.formats_of_name("a.bin") == ["megatron", "raw-tokens"]
    assert formats.formats_of_name("a.zarr/") == ["flat-tokens"]
    assert formats.formats_of_name("a.plug") == ["plug-in"]
    assert formats.formats_of_name("a") == []


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        formats.get_format("pbinn")
    assert "Did you mean 'pbin'?" in str(caught.value)
    assert all(name in str(caught.value) for name in formats.BUILT_IN)


def test_plug_in_is_found_and_a_built_in_name_stays(plug_in: PlugIn) -> None:
    assert formats.format_names() == [*formats.BUILT_IN, "plug-in"]
    assert formats.get_format("plug-in") is plug_in
    assert formats.get_format("pbin") is not plug_in


def test_plug_in_opens_what_it_sniffs(plug_in: PlugIn, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"plugged in")
    assert formats.sniff(LocalStore(), str(path)) is plug_in
    source = penstock.open(path, split="val", eos_id=3, columns=["a"], read="pread")
    assert source[0]["path"] == str(path)
    assert source[0]["options"] == OpenOptions(split="val", eos_id=3, columns=("a",), read="pread")


def test_named_format_is_not_sniffed(plug_in: PlugIn, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"other")
    assert penstock.open(tmp_path / "a.bin", format="plug-in")[0]["path"] == str(tmp_path / "a.bin")


def test_fitting_suffix_is_asked_first(plug_in: PlugIn, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for name in formats.format_names():
        kind = type(formats.get_format(name))

        def watch(self: Any, store: Any, path: str) -> Sniff:
            asked.append(self.name)
            return Sniff(False, f"{self.name} says no")

        monkeypatch.setattr(kind, "sniff", watch)
    with pytest.raises(Unsupported):
        formats.sniff(MemoryStore({"a.plug": b"x"}), "a.plug")
    assert asked[0] == "plug-in"
    assert sorted(asked) == sorted(formats.format_names())


def test_what_nobody_knows_says_why() -> None:
    with pytest.raises(Unsupported) as caught:
        formats.sniff(MemoryStore({"a.xyz": b"\x93\xff\x80" * 50}), "a.xyz")
    assert caught.value.path == "a.xyz"
    assert str(caught.value).startswith("a.xyz: no format recognizes this: found bytes of an unknown format. ")
    assert all(f"{name}: " in caught.value.__notes__[0] for name in formats.BUILT_IN)
    assert "format=" in str(caught.value)


def test_missing_path() -> None:
    with pytest.raises(NotFound) as caught:
        penstock.open("/no/such/path.pbin")
    assert caught.value.path == "/no/such/path.pbin"


def test_create_and_open(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"  # no suffix that helps
    with penstock.create(path, format="pbin", token_bytes=2) as writer:
        writer.write({"tokens": np.array([1, 2, 3], np.uint16)})
    assert penstock.open(path)[0]["tokens"].tolist() == [1, 2, 3]
    with pytest.raises(ConfigError):
        penstock.create(path, format="pbin", token_bytes=2)


@pytest.mark.parametrize(
    ("format", "hint"), [("pbin", "--file-tokens N"), ("megatron", "data.idx"), ("jsonl", "data.jsonl")]
)
def test_a_slash_is_no_name_of_a_file(tmp_path: Path, format: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        penstock.create(f"{tmp_path}/out/", format=format, **({} if format == "jsonl" else {"token_bytes": 2}))
    assert not list(tmp_path.iterdir())


def test_create_in_a_format_that_only_reads(plug_in: PlugIn, tmp_path: Path) -> None:
    with pytest.raises(Unsupported) as caught:
        penstock.create(tmp_path / "a", format="plug-in")
    assert "read-only" in str(caught.value)
