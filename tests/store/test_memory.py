"""The store in memory: the laws of all stores."""

from __future__ import annotations

import pytest

from penstock.store.memory import MemoryStore
from penstock.testing.stores import StoreSuite


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()

    @pytest.fixture
    def root(self) -> str:
        return "folder/root"


def test_files_are_the_dict_that_was_given() -> None:
    files = {"a": b"x"}
    store = MemoryStore(files)
    staged = store.stage("b")
    staged.write(b"y")
    assert files == {"a": b"x"}
    staged.commit()
    assert files == {"a": b"x", "b": b"y"}
