"""Tests of `penstock.abc.Store`, as a suite that the tests of each store inherit.

class TestMyStore(StoreSuite):
    @pytest.fixture
    def store(self, tmp_path):
        return MyStore(...)

    @pytest.fixture
    def root(self, tmp_path):
        return "a/folder/in/it"

A read-only store has `writes = False` and its own `put`, which creates a file without the store.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from penstock.abc import Store, SupportsMmap
from penstock.errors import ConfigError, NotFound, PenstockError, Truncated
from penstock.testing.strategies import for_all

BIG_BYTES = (5 << 20) + 3


def put(store: Store, path: str, data: bytes, *, overwrite: bool = False) -> None:
    staged = store.stage(path, overwrite=overwrite)
    staged.write(data)
    staged.commit()


def files_under(store: Store, root: str) -> list[str]:
    """Return the paths of all visible files under `root`; empty if it doesn't exist."""
    return list(store.list(root)) if store.is_folder(root) else []


def _writing(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test of stores that write."""

    @functools.wraps(test)
    def law(self: StoreSuite, *arguments: Any, **named: Any) -> None:
        if not self.writes:
            pytest.skip("a read-only store")
        test(self, *arguments, **named)

    return law


class StoreSuite:
    """Tests of a store: inherit the class and define the fixtures `store` and `root`.

    `root` is a directory in the store, which needn't exist.

    Attributes:
        writes: False for a read-only store; `put` then makes its files.

    Examples:
        >>> import pytest
        >>> from penstock.store import LocalStore
        >>> from penstock.testing import StoreSuite
        >>> class TestMyStore(StoreSuite):
        ...     @pytest.fixture
        ...     def store(self):
        ...         return LocalStore()
        ...
        ...     @pytest.fixture
        ...     def root(self, tmp_path):
        ...         return str(tmp_path)

        pytest runs all tests. To run one:

        >>> TestMyStore().test_get_whole_and_ranges(LocalStore(), "folder")
    """

    writes: bool = True

    def put(self, store: Store, path: str, data: bytes) -> None:
        """Make one file, for tests of reading."""
        put(store, path, data)

    # --- reading -------------------------------------------------------------------------------------------------

    def test_get_whole_and_ranges(self, store: Store, root: str) -> None:
        path = f"{root}/a.bin"
        data = bytes(range(256)) * 5
        self.put(store, path, data)
        assert store.get(path) == data
        assert store.get(path, 10) == data[10:]
        assert store.get(path, 10, 20) == data[10:30]
        assert store.get(path, 10, 0) == b""

    def test_get_is_short_only_at_the_end(self, store: Store, root: str) -> None:
        self.put(store, f"{root}/a.bin", b"0123456789")
        assert store.get(f"{root}/a.bin", 8, 5) == b"89"
        assert store.get(f"{root}/a.bin", 10, 5) == b""
        assert store.get(f"{root}/a.bin", 1 << 40, 5) == b""

    def test_empty_file(self, store: Store, root: str) -> None:
        self.put(store, f"{root}/empty", b"")
        assert store.size(f"{root}/empty") == 0
        assert store.get(f"{root}/empty") == b""
        assert store.exists(f"{root}/empty")

    def test_get_ranges_equals_slices(self, store: Store, root: str) -> None:
        path = f"{root}/a.bin"
        data = np.random.default_rng(3).bytes(3000)
        self.put(store, path, data)
        bounds = st.tuples(st.integers(0, 3000), st.integers(0, 3000)).map(lambda pair: (min(pair), max(pair)))

        @for_all(st.lists(bounds, max_size=8))
        def law(ranges: list[tuple[int, int]]) -> None:
            assert store.get_ranges(path, ranges) == [data[start:stop] for start, stop in ranges]

    def test_get_ranges_past_the_end_is_truncated(self, store: Store, root: str) -> None:
        self.put(store, f"{root}/a.bin", b"0123456789")
        with pytest.raises(Truncated) as caught:
            store.get_ranges(f"{root}/a.bin", [(0, 4), (8, 11)])
        assert caught.value.path == f"{root}/a.bin"

    def test_missing_file_is_not_found(self, store: Store, root: str) -> None:
        self.put(store, f"{root}/there", b"x")
        path = f"{root}/missing"
        for read in (
            lambda: store.get(path),
            lambda: store.get_ranges(path, [(0, 1)]),
            lambda: store.size(path),
            lambda: list(store.list(path)),
        ):
            with pytest.raises(NotFound) as caught:
                read()
            assert caught.value.path == path
        assert not store.exists(path)
        assert not store.is_folder(path)

    def test_mmap(self, store: Store, root: str) -> None:
        self.put(store, f"{root}/a.bin", b"0123456789")
        self.put(store, f"{root}/empty", b"")
        if isinstance(store, SupportsMmap):
            mapped = store.mmap(f"{root}/a.bin")
            assert mapped.dtype == np.uint8
            assert mapped.tobytes() == b"0123456789"
            assert not mapped.flags.writeable
            assert store.mmap(f"{root}/empty").shape == (0,)
            with pytest.raises(NotFound):
                store.mmap(f"{root}/missing")
        else:
            assert not hasattr(store, "mmap")

    # --- names ---------------------------------------------------------------------------------------------------

    def test_folders(self, store: Store, root: str) -> None:
        self.put(store, f"{root}/deep/er/a.bin", b"x")
        assert store.exists(f"{root}/deep/er/a.bin")
        assert not store.is_folder(f"{root}/deep/er/a.bin")
        assert store.exists(f"{root}/deep")
        assert store.is_folder(f"{root}/deep")
        with pytest.raises(NotFound):
            store.size(f"{root}/deep")

    def test_list_is_in_byte_order(self, store: Store, root: str) -> None:
        names = ["b", "a/z", "a.txt", "a/b/c", "Z", "é", "𝄞", "\ufb00", "a b", "a-", "10", "9"]
        for name in names:
            self.put(store, f"{root}/{name}", b"x")
        assert list(store.list(root)) == [f"{root}/{name}" for name in sorted(names, key=str.encode)]
        assert list(store.list(f"{root}/a")) == [f"{root}/a/b/c", f"{root}/a/z"]

    def test_odd_names(self, store: Store, root: str) -> None:
        for name in ("with space", "new\nline", "%41", "a" * 250, ".hidden", "quote'\""):
            self.put(store, f"{root}/{name}", name.encode())
            assert store.get(f"{root}/{name}") == name.encode()

    @_writing
    def test_delete(self, store: Store, root: str) -> None:
        self.put(store, f"{root}/a.bin", b"x")
        self.put(store, f"{root}/b.bin", b"y")
        store.delete(f"{root}/a.bin")
        assert not store.exists(f"{root}/a.bin")
        assert store.get(f"{root}/b.bin") == b"y"
        with pytest.raises(NotFound) as caught:
            store.delete(f"{root}/a.bin")
        assert caught.value.path == f"{root}/a.bin"

    def test_what_it_can_not_do_is_refused(self, store: Store, root: str) -> None:
        if self.writes:
            return
        self.put(store, f"{root}/a.bin", b"x")
        for refused in (
            lambda: store.stage(f"{root}/new"),
            lambda: store.stage(f"{root}/a.bin", overwrite=True),
            lambda: store.delete(f"{root}/a.bin"),
        ):
            with pytest.raises(PenstockError):
                refused()
        assert store.get(f"{root}/a.bin") == b"x"

    # --- staging -------------------------------------------------------------------------------------------------

    @_writing
    def test_staged_is_invisible_until_commit(self, store: Store, root: str) -> None:
        put(store, f"{root}/other", b"o")
        path = f"{root}/a.bin"
        staged = store.stage(path)
        staged.write(b"x" * BIG_BYTES)
        staged.sync()
        assert not store.exists(path)
        assert list(store.list(root)) == [f"{root}/other"]
        with pytest.raises(NotFound):
            store.get(path)
        staged.commit()
        assert store.get(path) == b"x" * BIG_BYTES
        assert list(store.list(root)) == [path, f"{root}/other"]

    @_writing
    def test_abort_leaves_nothing(self, store: Store, root: str) -> None:
        put(store, f"{root}/other", b"o")
        staged = store.stage(f"{root}/new/folder/a.bin")
        staged.write(b"x" * BIG_BYTES)
        staged.abort()
        staged.abort()
        assert list(store.list(root)) == [f"{root}/other"]
        assert not store.exists(f"{root}/new")

    @_writing
    def test_abort_after_commit_does_nothing(self, store: Store, root: str) -> None:
        staged = store.stage(f"{root}/a.bin")
        staged.write(b"x")
        staged.commit()
        staged.abort()
        assert store.get(f"{root}/a.bin") == b"x"

    @_writing
    @pytest.mark.parametrize("end", ["commit", "abort"])
    def test_ended_staged_file_takes_no_more(self, store: Store, root: str, end: str) -> None:
        staged = store.stage(f"{root}/a.bin")
        staged.write(b"x")
        getattr(staged, end)()
        with pytest.raises((ValueError, OSError)):
            staged.write(b"y")
        with pytest.raises((ValueError, OSError)):
            staged.commit()
        assert store.exists(f"{root}/a.bin") == (end == "commit")

    @_writing
    def test_existing_file_is_refused(self, store: Store, root: str) -> None:
        put(store, f"{root}/a.bin", b"old")
        with pytest.raises(ConfigError) as caught:
            store.stage(f"{root}/a.bin")
        assert caught.value.path == f"{root}/a.bin"
        assert store.get(f"{root}/a.bin") == b"old"

    @_writing
    def test_file_that_appears_meanwhile_is_kept(self, store: Store, root: str) -> None:
        first, second = store.stage(f"{root}/a.bin"), store.stage(f"{root}/a.bin")
        first.write(b"first")
        second.write(b"second")
        first.commit()
        with pytest.raises(ConfigError):
            second.commit()
        assert store.get(f"{root}/a.bin") == b"first"
        assert files_under(store, root) == [f"{root}/a.bin"]

    @_writing
    def test_overwrite_shows_the_old_until_commit(self, store: Store, root: str) -> None:
        path = f"{root}/a.bin"
        put(store, path, b"old")
        staged = store.stage(path, overwrite=True)
        staged.write(b"newer")
        assert store.get(path) == b"old"
        staged.commit()
        assert store.get(path) == b"newer"
        aborted = store.stage(path, overwrite=True)
        aborted.write(b"newest")
        aborted.abort()
        assert store.get(path) == b"newer"

    @_writing
    def test_commit_of_several(self, store: Store, root: str) -> None:
        staged = [store.stage(f"{root}/{name}") for name in "abc"]
        for number, one in enumerate(staged):
            one.write(bytes([number]) * 10)
        store.commit(staged)
        assert [store.get(path) for path in store.list(root)] == [bytes([number]) * 10 for number in range(3)]

    # --- writing -------------------------------------------------------------------------------------------------

    @_writing
    def test_pieces_make_the_whole(self, store: Store, root: str) -> None:
        names = itertools.count()
        piece = st.one_of(st.binary(max_size=50), st.integers(0, 3 << 20).map(lambda size: b"\xa5" * size))

        @for_all(st.lists(piece, max_size=5), examples=15)
        def law(pieces: list[bytes]) -> None:
            path = f"{root}/{next(names)}"
            staged = store.stage(path)
            for number, data in enumerate(pieces):
                assert staged.tell() == sum(map(len, pieces[:number]))
                assert staged.write(data) == len(data)
            staged.commit()
            assert store.get(path) == b"".join(pieces)

    @_writing
    def test_write_takes_any_buffer(self, store: Store, root: str) -> None:
        array = np.arange(20, dtype=np.uint16).reshape(4, 5)
        staged = store.stage(f"{root}/a.bin")
        for data in (b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3], array, array[:, ::2], np.array([], np.uint32)):
            staged.write(data)
        staged.commit()
        assert store.get(f"{root}/a.bin") == b"abcdef" + array.tobytes() + array[:, ::2].tobytes()

    @_writing
    def test_a_buffer_may_change_after_write(self, store: Store, root: str) -> None:
        buffer = bytearray(b"first")
        staged = store.stage(f"{root}/a.bin")
        staged.write(buffer)
        buffer[:] = b"later"
        staged.commit()
        assert store.get(f"{root}/a.bin") == b"first"

    @_writing
    @pytest.mark.parametrize("size_bytes", [20, BIG_BYTES])
    def test_write_at_changes_what_is_there(self, store: Store, root: str, size_bytes: int) -> None:
        staged = store.stage(f"{root}/a.bin")
        staged.write(b"-" * size_bytes)
        staged.write_at(4, b"head")
        assert staged.tell() == size_bytes
        staged.write(b"end")
        staged.commit()
        assert store.get(f"{root}/a.bin") == b"----head" + b"-" * (size_bytes - 8) + b"end"

    @_writing
    def test_append_file(self, store: Store, root: str, tmp_path: Path) -> None:
        part = tmp_path / "part.bin"
        data = np.random.default_rng(5).bytes(100_000)
        part.write_bytes(data)
        staged = store.stage(f"{root}/a.bin")
        staged.write(b"before")
        assert staged.append_file(str(part)) == len(data)
        assert staged.append_file(str(part), 10, 20) == 20
        assert staged.append_file(str(part), len(data)) == 0
        assert staged.tell() == 6 + len(data) + 20
        staged.write(b"after")
        staged.commit()
        assert store.get(f"{root}/a.bin") == b"before" + data + data[10:30] + b"after"

    @_writing
    def test_append_file_refuses_what_is_not_there(self, store: Store, root: str, tmp_path: Path) -> None:
        part = tmp_path / "part.bin"
        part.write_bytes(b"0123456789")
        staged = store.stage(f"{root}/a.bin")
        with pytest.raises(Truncated) as caught:
            staged.append_file(str(part), 5, 6)
        assert caught.value.path == str(part)
        staged.abort()
        assert not store.exists(f"{root}/a.bin")
