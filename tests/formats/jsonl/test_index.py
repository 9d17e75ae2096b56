"""Finding, making and reading the index, and noticing that it does not fit."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import JSONL_FORMAT as FORMAT
from tests.internals import IndexedLines, JsonlSource, index_path_for, replace

from penstock.errors import ConfigError, Corrupt, NotFound, Truncated, UnsafeData
from penstock.store import LocalStore, MemoryStore
from penstock.testing import CountingStore
from penstock.testing.elsewhere import in_a_fork
from penstock.types import OpenOptions

LINES = [b'{"n": 0}', b'{"n": 1, "t": "\xc3\xa9\xc3\xa9"}', b'{"n": 22}', b'{"n": 333}']


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.b.jsonl"
    path.write_bytes(b"\n".join(LINES) + b"\n")
    return path


def opened(path: Path, store: Any = None, **options: Any) -> JsonlSource:
    return FORMAT.open(LocalStore() if store is None else store, str(path), OpenOptions(**options))


def entries(lines: Sequence[bytes] = LINES) -> list[tuple[int, int]]:
    lengths = np.array([len(line) for line in lines])
    return list(zip((np.cumsum(lengths + 1) - lengths - 1).tolist(), lengths.tolist(), strict=True))


def put_index(path: Path, pairs: Sequence[tuple[int, int]]) -> Path:
    index_path = path.with_suffix(".idx")
    index_path.write_bytes(pickle.dumps(list(pairs), 4))
    return index_path


class TestMaking:
    def test_found_when_the_first_line_is_asked_for(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        built = count_builds(monkeypatch)
        source = opened(path)
        assert built == []
        assert source[-1] == {"n": 333}
        assert len(built) == 1
        assert list(path.parent.iterdir()) == [path], "something was written beside the file"

    def test_opening_reads_nothing(self, path: Path) -> None:
        store = CountingStore(LocalStore())
        opened(path, store)
        assert store.read_bytes == 0

    def test_only_the_last_suffix_goes(self) -> None:
        names = {"a.jsonl": "a.idx", "a.b.jsonl": "a.b.idx", "d.x/a": "d.x/a.idx", "/r/a.jsonl": "/r/a.idx"}
        assert {name: index_path_for(name) for name in names} == names

    def test_an_index_is_no_file_of_lines(self) -> None:
        with pytest.raises(ConfigError):
            index_path_for("a.idx")

    def test_other_indexes_beside_it_do_not_matter(self, path: Path) -> None:
        path.with_name(path.name + ".idx").write_bytes(np.arange(9, dtype="<u8").tobytes())
        assert len(opened(path)) == 4

    def test_a_faulty_line_is_named(self, path: Path) -> None:
        path.write_bytes(b'{}\n{"a": \xff}\n{}\n')
        with pytest.raises(Corrupt, match="line 2 ") as caught:
            len(opened(path))
        assert caught.value.offset_bytes == 3
        assert "--on-error skip" in str(caught.value)
        assert not path.with_suffix(".idx").exists()

    def test_one_thread_builds_and_the_others_wait(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        built = count_builds(monkeypatch)
        barrier = threading.Barrier(6)

        def read(_: int) -> int:
            barrier.wait()
            return len(opened(path))

        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(read, range(6))) == [4] * 6
        assert len(built) == 1

    def test_in_memory(self) -> None:
        store = MemoryStore({"d/a.jsonl": b"\n".join(LINES)})
        assert opened(Path("d/a.jsonl"), store)[2] == {"n": 22}
        assert list(store.files) == ["d/a.jsonl"]


class TestKeptInTheCacheFolder:
    def test_by_one_process_of_this_host(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        built = count_builds(monkeypatch)
        first, second = opened(path), opened(path)
        assert [first[place]["n"] for place in range(4)] == [0, 1, 22, 333]
        assert second[3] == {"n": 333}
        assert len(built) == 1
        in_a_fork(lambda: check_equal(opened(path)[2], {"n": 22}))

    def test_an_index_that_comes_later_counts(self, path: Path) -> None:
        assert len(opened(path)) == 4
        put_index(path, entries()[:2] + entries()[3:])
        assert len(opened(path)) == 3

    def test_a_change_is_noticed(self, path: Path) -> None:
        assert len(opened(path)) == 4
        path.write_bytes(b"{}\n")
        os.utime(path, ns=(0, 0))
        assert len(opened(path)) == 1

    def test_the_fingerprint_does_not_depend_on_where_the_index_is(self, path: Path) -> None:
        fingerprint = opened(path).fingerprint
        put_index(path, entries())
        assert opened(path).fingerprint == fingerprint

    def test_without_a_cache_folder(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PENSTOCK_CACHE", "/proc/no/such")
        assert len(opened(path)) == 4

    def test_another_user(self, path: Path) -> None:
        if os.getuid() != 0:
            path.parent.chmod(0o500)
            assert len(opened(path)) == 4
            return
        in_a_fork(lambda: as_nobody(path))
        assert not path.with_suffix(".idx").exists()


class TestReading:
    def test_any_protocol(self, path: Path) -> None:
        for protocol in (2, 3, 5):
            path.with_suffix(".idx").write_bytes(pickle.dumps(entries(), protocol))
            assert len(opened(path)) == 4

    def test_lines_left_out_stay_out(self, path: Path) -> None:
        put_index(path, entries()[:1] + entries()[2:])
        source = opened(path)
        assert [source[place]["n"] for place in range(len(source))] == [0, 22, 333]

    def test_faulty_lines_at_the_end_may_be_left_out(self, path: Path) -> None:
        path.write_bytes(path.read_bytes() + b"\n\nfaulty\n")
        put_index(path, entries())
        assert len(opened(path)) == 4

    def test_any_order(self, path: Path) -> None:
        put_index(path, [*entries()[::-1], entries()[1]])
        source = opened(path)
        assert [source[place]["n"] for place in range(len(source))] == [333, 22, 1, 0, 1]

    def test_a_big_index_is_decoded_once(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        replace(monkeypatch, "jsonl_index_in_memory_bytes", 10)
        put_index(path, entries())
        assert opened(path)[3] == {"n": 333}
        replace(monkeypatch, "decode_jsonl_index", None)
        again = opened(path)
        assert [again[place]["n"] for place in range(4)] == [0, 1, 22, 333]

    def test_another_big_index_of_the_same_file(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        replace(monkeypatch, "jsonl_index_in_memory_bytes", 10)
        put_index(path, entries())
        assert len(opened(path)) == 4
        put_index(path, [entries()[0], *entries()[2:]])
        assert [opened(path)[place]["n"] for place in range(3)] == [0, 22, 333]
        path.write_bytes(path.read_bytes()[:-2])
        with pytest.raises(Corrupt):
            len(opened(path))


class TestMisfits:
    def refused(self, path: Path, what: str) -> Corrupt:
        with pytest.raises(Corrupt, match=what) as caught:
            len(opened(path))
        assert caught.value.path == str(path)
        assert f"penstock index {path} --overwrite" in str(caught.value)
        assert str(path.with_suffix(".idx")) in str(caught.value)
        return caught.value

    def test_a_shorter_file(self, path: Path) -> None:
        put_index(path, entries())
        path.write_bytes(b"\n".join(LINES[:3]) + b"\n")
        assert self.refused(path, "is outside the file").offset_bytes == entries()[3][0]

    def test_a_longer_file(self, path: Path) -> None:
        put_index(path, entries())
        size_bytes = path.stat().st_size
        path.write_bytes(path.read_bytes() + b'{"n": 4}\n')
        assert self.refused(path, "after the last").offset_bytes == size_bytes

    def test_a_longer_file_after_a_last_line_without_end(self, path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-1])
        put_index(path, entries())
        path.write_bytes(path.read_bytes() + b'{"n": 4}\n')
        self.refused(path, "doesn't match")

    def test_an_empty_index_of_a_full_file(self, path: Path) -> None:
        put_index(path, [])
        assert self.refused(path, "after the last").offset_bytes == 0

    def test_a_changed_line(self, path: Path) -> None:
        put_index(path, entries())
        path.write_bytes(path.read_bytes().replace(b'"n": 22', b'"n": 2'))
        with pytest.raises(Corrupt):
            len(opened(path))

    def test_another_file_of_the_same_size(self, path: Path) -> None:
        put_index(path, entries())
        path.write_bytes(b"\n".join(LINES[::-1]) + b"\n")
        self.refused(path, "doesn't match")

    def test_shifted_entries(self, path: Path) -> None:
        put_index(path, [(start + 1, length) for start, length in entries()])
        self.refused(path, "doesn't match|outside the file")

    def test_characters_counted_for_bytes(self, path: Path) -> None:
        pairs = entries()
        put_index(path, [pairs[0], (pairs[1][0], pairs[1][1] - 2), *pairs[2:]])
        assert self.refused(path, "counts characters").offset_bytes == pairs[1][0]

    def test_damage_of_the_index_itself(self, path: Path) -> None:
        whole = put_index(path, entries()).read_bytes()
        path.with_suffix(".idx").write_bytes(whole[:-3])
        with pytest.raises(Truncated) as caught:
            len(opened(path))
        assert caught.value.path == str(path.with_suffix(".idx"))
        assert "--overwrite" in str(caught.value)

    def test_no_file_at_all(self, path: Path) -> None:
        path.unlink()
        with pytest.raises(NotFound):
            opened(path)

    def test_code_in_the_index(self, path: Path) -> None:
        path.with_suffix(".idx").write_bytes(b"\x80\x04(cposix\nsystem\n.")
        with pytest.raises(Corrupt):
            len(opened(path))
        path.with_suffix(".idx").write_bytes(b"\x80\x04]\x94cposix\nsystem\n.")
        with pytest.raises(UnsafeData):
            len(opened(path))


def count_builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    built: list[str] = []
    indexed_lines = IndexedLines

    def counted(*arguments: Any, **options: Any) -> IndexedLines:
        built.append(arguments[1])
        return indexed_lines(*arguments, **options)

    replace(monkeypatch, "jsonl_lines_to_index", counted)
    return built


def check_equal(left: object, right: object) -> None:
    assert left == right


def as_nobody(path: Path) -> None:
    """Read as a user who may write neither beside the file nor in the cache folder."""
    parents: list[Path] = [path, *path.parents]
    for parent in parents[1:]:
        if parent.stat().st_uid == 0 and parent.stat().st_mode & 0o700 == 0o700 and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    os.environ["PENSTOCK_CACHE"] = str(path.parent / "no-cache")
    os.setuid(65534)
    assert len(opened(path)) == 4
    assert not path.with_suffix(".idx").exists()
