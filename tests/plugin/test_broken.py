"""A plug-in with faults: who has use for it is told whose it is, and nobody else meets it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.internals import forget_plug_ins, plug_ins

import penstock as ps
from penstock import formats
from penstock.errors import ConfigError, PenstockError, Unsupported
from penstock.executors import make_executor

Install = Callable[[str], None]

MODULE = """
class Named:
    name = "other"
    traits = sniff = open = None

class Promising:
    class traits:
        write = verify = True
    sniff = open = None

half, promising = object(), Promising()
named = Named()
def make(workers):
    return None
"""

FAULTS = {
    "zz_gone:FORMAT": "can't be imported (ModuleNotFoundError: No module named 'zz_gone')",
    "zz_broken:FORMAT": "can't be imported (AttributeError: module 'zz_broken' has no attribute 'FORMAT')",
    "zz_broken:half": "is not a format: zz_broken:half has no name, traits, sniff, open",
    "zz_broken:promising": "is not a format: zz_broken:promising has no name, create, check",
    "zz_broken:named": "has the name 'other': the entry point and FORMAT.name must be the same",
}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    site = tmp_path / "site"
    info = site / "zz_broken-1.5.dist-info"
    info.mkdir(parents=True)
    (site / "zz_broken.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: zz-broken\nVersion: 1.5\n")
    monkeypatch.syspath_prepend(site)

    def made(points: str) -> None:
        (info / "entry_points.txt").write_text(points)
        forget_plug_ins()

    yield made
    forget_plug_ins()
    sys.modules.pop("zz_broken", None)


@pytest.mark.parametrize("target", FAULTS)
def test_it_is_named_to_who_has_use_for_it_alone(install: Install, tmp_path: Path, target: str) -> None:
    install(f"[penstock.formats]\nzz = {target}\n")
    expected = f"he plug-in 'zz' of zz-broken 1.5 {FAULTS[target]}. Fix it, or remove it: pip uninstall zz-broken"
    lines, unknown = tmp_path / "a.jsonl", tmp_path / "a.zz"
    lines.write_text('{"text": "a"}\n')
    unknown.write_bytes(b"\0zz")
    assert len(ps.open(lines)) == 1
    asked: tuple[tuple[type[PenstockError], Callable[[], object]], ...] = (
        (ConfigError, lambda: ps.open(lines, format="zz")),
        (ConfigError, lambda: ps.convert(lines, tmp_path / "b.zz")),
        (Unsupported, lambda: ps.open(unknown)),
    )
    for kind, call in asked:
        with pytest.raises(kind) as caught:
            call()
        assert expected in str(caught.value)


def test_an_executor(install: Install) -> None:
    install("[penstock.executors]\ngone = zz_gone:make\nmade = zz_broken:make\n")
    with pytest.raises(ConfigError, match=r"'gone' of zz-broken 1\.5 can't be imported \(ModuleNotFoundError"):
        make_executor("gone", 1)
    with pytest.raises(
        ConfigError, match=r"'made' of zz-broken 1\.5 doesn't return an executor \(TypeError: make\(\) takes 1"
    ):
        make_executor("made", 1)


def test_doctor_names_each(install: Install) -> None:
    install(
        "[penstock.formats]\npbin = zz_broken:named\nzz = zz_gone:FORMAT\n[penstock.executors]\nmade = zz_broken:make\n"
    )
    told = {one["name"]: one["fault"] for one in plug_ins() if one["package"] == "zz-broken 1.5"}
    assert told["pbin"] == "ignored: Penstock has a built-in of this name"
    assert "can't be imported (ModuleNotFoundError" in told["zz"]
    assert told["made"] is None


def test_the_names_of_formats_are_not_taken(install: Install) -> None:
    install("[penstock.formats]\npbin = zz_broken:named\n")
    assert formats.get_format("pbin").traits.made_by == "Modalities"
    assert formats.format_names() == list(formats.BUILT_IN)
