"""A store with only the methods of `penstock.abc.Store` is taken by formats and the kit, however it is passed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.formats import get_format, kit, sniff
from penstock.store import LocalStore
from penstock.types import OpenOptions

METHODS = ("get", "get_ranges", "size", "exists", "is_folder", "list", "stage", "commit", "delete")
TOKENS, LINES = {"tokens": np.arange(5)}, {"text": "a"}
CASES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("pbin", "out.pbin", {"token_bytes": 2}, TOKENS),
    ("megatron", "out", {"dtype": "uint16"}, TOKENS),
    ("flat-tokens", "out.zarr", {"token_bytes": 2}, TOKENS),
    ("jsonl", "out.jsonl", {}, LINES),
    ("mds", "out", {"columns": {"text": "str"}}, LINES),
    ("webdataset", "out", {}, {"__key__": "k", "txt": "x"}),
    ("folder", "out", {}, {"__key__": "k", "txt": "x"}),
]


class PlugIn:
    """Hands the documented methods on to a local store, and has no others."""

    def __init__(self) -> None:
        local = LocalStore()
        for name in METHODS:
            setattr(self, name, getattr(local, name))


@pytest.mark.parametrize(("name", "file", "options", "sample"), CASES, ids=[name for name, *_ in CASES])
def test_formats_take_a_plug_in_store(
    name: str, file: str, options: dict[str, Any], sample: dict[str, Any], tmp_path: Path
) -> None:
    chosen, path = get_format(name), str(tmp_path / file)
    store: Any = PlugIn()
    with chosen.create(store=store, path=path, options=options, overwrite=False) as writer:
        writer.write(sample)
    source: Any = chosen.open(store, path, OpenOptions())
    assert len(source) == 1
    assert not list(chosen.check(store, path, OpenOptions(), "full"))
    assert not chosen.repair(store=store, path=path, options=OpenOptions(), findings=[], write=True)
    assert sniff(store, path).name == name


def test_the_kit_takes_a_plug_in_store(tmp_path: Path) -> None:
    path = str(tmp_path / "out.x")
    store: Any = PlugIn()
    file = kit.OutputFile(store, path, overwrite=False)
    file.write(b"abc")
    manifest = file.commit("x", 3)
    assert kit.known_manifest(store, path) == manifest
    assert kit.fingerprint_of(store, path, "x", b"") == kit.fingerprint_of(LocalStore(), path, "x", b"")
    assert kit.check_side(store, path, "x", 3, "full") == []
    assert [one.code for one in kit.check_side(store, path, "x", 4, "full")] == ["x.changed"]
