"""Remote stores in forked children, in torch's default DataLoader too: they work, and never hang."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from penstock.testing import FileServer

DATA = np.random.default_rng(3).integers(0, 60_000, 200_000, dtype=np.uint16).tobytes()


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer({"a.bin": DATA}) as one:
        yield one


def run(script: str, *given: str) -> str:
    """What a script prints; a script that hangs is killed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), *given],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


TORCH = """
    import sys
    import torch
    from torch.utils.data import DataLoader, Dataset
    from penstock.store.place import resolve

    class Bytes(Dataset):
        def __init__(self, url):
            self.store, self.path = resolve(url)

        def __len__(self):
            return 64

        def __getitem__(self, index):
            return self.store.get_ranges(self.path, [(index * 10, index * 10 + 10)])[0]

    data = Bytes(sys.argv[1] + "/a.bin")
    if sys.argv[2] == "used":
        assert data.store.size(data.path) == 400_000
    loader = DataLoader(data, batch_size=8, num_workers=2, multiprocessing_context="fork")
    for epoch in range(2):
        got = b"".join(one for batch in loader for one in batch)
        assert got == data.store.get(data.path, 0, 640)
    print("done")
"""


@pytest.mark.parametrize("parent", ["used", "untouched"])
def test_dataloader_forks(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent: str) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    assert run(TORCH, server.url, parent) == "done\n"


FORKED = """
    import multiprocessing, os, pickle, sys
    from penstock.errors import NotFound, Unreachable, Truncated
    from penstock.store._fork_helper import HelperTransport, _helper, transport
    from penstock.store._requests import RemoteOptions
    from penstock.store.remote import RemoteStore

    url = sys.argv[1]
    store = RemoteStore(url, RemoteOptions(tries=2, backoff_s=0.01))
    whole = store.get(url + "/a.bin")

    def child():
        assert type(transport(store.base, store.options)) is HelperTransport
        assert store.get(url + "/a.bin") == whole
        assert store.get_ranges(url + "/a.bin", [(5, 10), (300_000, 300_007)]) == [whole[5:10], whole[300_000:300_007]]
        assert store.size(url + "/a.bin") == len(whole)
        for kind, work in (
            (NotFound, lambda: store.size(url + "/missing")),
            (Truncated, lambda: store.get_ranges(url + "/a.bin", [(0, 400_001)])),
        ):
            try:
                work()
            except kind as error:
                assert error.path.startswith(url + "/"), error
                assert pickle.loads(pickle.dumps(error)).path == error.path
            else:
                raise SystemExit(1)
        grandchild = multiprocessing.get_context("fork").Process(target=leaf)
        grandchild.start()
        grandchild.join()
        assert grandchild.exitcode == 0
        _helper(os.getpid())._process.kill()
        try:
            store.size(url + "/a.bin")
        except Unreachable as error:
            assert "forkserver" in str(error)
        else:
            raise SystemExit(1)

    def leaf():
        assert store.get(url + "/a.bin", 0, 10) == whole[:10]

    worker = multiprocessing.get_context("fork").Process(target=child)
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    pid = os.fork()  # a child that ends as a script does
    if pid == 0:
        assert store.get(url + "/a.bin", 0, 10) == whole[:10]
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert store.get(url + "/a.bin", 0, 10) == whole[:10]
    print("done")
"""


def test_a_forked_child_reads_through_a_process_of_its_own(server: FileServer) -> None:
    assert run(FORKED, server.url) == "done\n"


WRITING = """
    import multiprocessing, sys
    from penstock.errors import ConfigError
    from penstock.store.remote import RemoteStore

    store, path = RemoteStore("s3://bucket"), sys.argv[1]
    assert not store.exists(path)

    def child():
        for size in (10, 9 << 20):
            one = store.stage(f"{path}/{size}")
            one.write(b"x" * size)
            one.commit()
            assert store.size(f"{path}/{size}") == size
        try:
            store.stage(f"{path}/10")
        except ConfigError:
            pass
        else:
            raise SystemExit(1)
        store.delete(f"{path}/10")

    worker = multiprocessing.get_context("fork").Process(target=child)
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    assert list(store.list(path)) == [f"{path}/{9 << 20}"]
    print("done")
"""


def test_a_forked_child_writes(s3_server: str) -> None:
    assert run(WRITING, "s3://bucket/forked") == "done\n"
