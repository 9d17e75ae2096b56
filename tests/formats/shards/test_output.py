"""Shards in a store without folders: up when they are finished; what a killed writer left is gone on with."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from tests.internals import INDEX_NAME

from penstock.abc import Staged
from penstock.errors import ConfigError
from penstock.formats import get_format
from penstock.store import MemoryStore
from penstock.testing.counting import CountingStore


class Open(CountingStore):
    """Counts staged files that are neither committed nor aborted."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(MemoryStore(files))
        self.staged: list[Staged] = []
        self.most_open = 0
        self._lock = threading.Lock()

    def stage(self, path: str, *, overwrite: bool = False) -> Staged:
        made = super().stage(path, overwrite=overwrite)
        with self._lock:
            self.staged = [made, *(one for one in self.staged if getattr(one, "_data", None) is not None)]
            self.most_open = max(self.most_open, len(self.staged))
        return made


def writer(store: Any, rows: int, text: str = "text", **options: Any) -> Any:
    given = {"columns": {"id": "int", "text": "str"}, "size_limit": 200, **options}
    made = get_format("mds").create(store, "set", given, overwrite=False)
    for number in range(rows):
        made.write({"id": number, "text": f"{text} {number}" * 5})
    return made


def whole(rows: int = 40) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    writer(CountingStore(MemoryStore(files)), rows).commit()
    return files


def test_few_files_are_open_however_many_shards() -> None:
    files: dict[str, bytes] = {}
    store = Open(files)
    writer(store, 400).commit()
    assert len(files) > 80
    assert store.most_open < 20
    assert f"set/{INDEX_NAME}" in files


def test_a_complete_one_is_refused_at_once(tmp_path: Path) -> None:
    files = whole()
    with pytest.raises(ConfigError, match="the output exists"):
        writer(CountingStore(MemoryStore(files)), 0)
    assert files == whole()
