"""`verify` by many workers: the same findings in the same order, and a refusal where there is nothing to give away."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import main, prepare_webdataset, put, replace, verify_shared, work_within
from tests.shared_work import Counting

import penstock as ps
from penstock.check import verify
from penstock.errors import ConfigError, Corrupt
from penstock.store import resolve
from penstock.testing.token_files import write_token_files


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0xFF
    path.write_bytes(data)


def mds(folder: Path) -> Path:
    with ps.create(folder / "mds", format="mds", columns={"t": "str"}, size_limit=2000, hashes=["sha1"]) as writer:
        for number in range(200):
            writer.write({"t": f"text {number} " * 8})
    return folder / "mds"


def tars(folder: Path) -> Path:
    (folder / "tars").mkdir()
    for shard in range(3):
        with ps.create(folder / "tars" / f"{shard}.tar", format="webdataset") as writer:
            for number in range(5):
                writer.write({"__key__": f"{shard}{number}", "txt": b"some text"})
    prepare_webdataset(folder / "tars", split_ratio=(1, 0, 0))
    return folder / "tars"


def pbin(folder: Path) -> Path:
    with ps.create(folder / "a.pbin", format="pbin", token_bytes=2) as writer:
        writer.write({"tokens": np.arange(5000, dtype=np.uint16)})
    return folder / "a.pbin"


def damaged(folder: Path, to: str) -> Path:
    """A file of tokens with other bytes than its side file says, an id that is too large, and documents without EOS."""
    path = folder / ("d.pbin" if to == "pbin" else "d.bin")
    with ps.create(path, format=to, token_bytes=2, eos_id=0) as writer:
        for number in range(900):
            writer.write({"tokens": [*range(1, number % 30 + 2), 0]})
    data = bytearray(path.read_bytes())
    for place in (6000, 6001, 8000, *range(9000, 9100)):
        data[place] ^= 0xFF
    path.write_bytes(data)
    return path


def damaged_pbin(folder: Path) -> Path:
    return damaged(folder, "pbin")


def damaged_pair(folder: Path) -> Path:
    return damaged(folder, "megatron")


def token_files(folder: Path) -> Path:
    files = [[[number + 1] * 40 + [0]] for number in range(7)]
    return write_token_files(folder / "many", files, "pbin", options={"eos_id": 0})


@pytest.mark.parametrize(
    ("make", "depth", "num_tasks"), [(mds, "full", 9), (mds, "quick", 9), (tars, "full", 3), (pbin, "full", 1)]
)
def test_the_same_findings_by_any_executor(
    make: Callable[[Path], Path], depth: Any, num_tasks: int, tmp_path: Path
) -> None:
    path, own = make(tmp_path), Counting()
    assert verify(path, depth=depth, executor=own) == verify(path, depth=depth) == []
    assert own.num_tasks >= num_tasks
    files = (
        [path]
        if path.is_file()
        else sorted(path.glob("*.mds"))[1:4] + [one for one in sorted(path.rglob("*.tar")) if one.is_file()][1:]
    )
    for file in files:
        flip(file, 130 if file.suffix == ".tar" else 600)
    found = verify(path, depth=depth)
    assert found or depth == "quick"
    assert verify(path, depth=depth, workers=2) == found
    assert verify(path, depth=depth, executor="inline") == found


def test_what_has_no_tasks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(
        ConfigError, match=r"'jsonl' can only be checked by a single process at depth full.*Omit --executor "
    ):
        verify(tmp_path / "a.jsonl", depth="full", workers=2)
    with pytest.raises(ConfigError, match=r"single process at depth sample.*or check at depth full"):
        verify(pbin(tmp_path), executor=Counting())
    assert verify(tmp_path / "a.pbin", workers=1) == verify(tmp_path / "a.pbin", executor="inline") == []


@pytest.mark.parametrize(
    ("make", "depth"),
    [
        (mds, "full"),
        (mds, "sample"),
        (tars, "full"),
        (token_files, "full"),
        (damaged_pbin, "full"),
        (damaged_pair, "full"),
    ],
)
def test_shares_report_what_one_run_does(
    make: Callable[[Path], Path],
    depth: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replace(monkeypatch, "scan_tokens", 700)
    replace(monkeypatch, "docs_step", 50)
    path, work = make(tmp_path), tmp_path / "marks"
    for number, file in enumerate(sorted(one for one in path.rglob("*") if one.suffix in (".mds", ".tar", ".pbin"))):
        if number % 2:
            flip(file, {".tar": 130, ".mds": 6}.get(file.suffix, file.stat().st_size // 2))
    told = [cli(capsys, "verify", path, "--depth", depth, *more) for more in ((), ("--json",))]
    assert told[0][0] == 1
    before = {one: one.stat().st_mtime_ns for one in path.rglob("*")}
    for more, one in zip(((), ("--json",)), told, strict=True):
        how = ("verify", path, "--depth", depth, "--work", work, *more)
        assert cli(capsys, *how, "--part", "2/3")[0] == 0
        assert cli(capsys, *how, "--part", "2/3")[0] == 0  # twice: nothing is left to do
        counted = json.loads(cli(capsys, "status", work, "--json")[1])
        assert (counted["shares"], counted["missing_shares"]) == (3, [0, 1])
        assert counted["done"] == sum(number % 3 == 2 for number in range(counted["tasks"]))
        assert counted["tasks"] >= 3
        status, said = cli(capsys, *how, "--finish", "--no-work")
        assert (status, "0-1" in said or '"missing": [\n  0,\n  1\n ]' in said) == (14, True)
        assert cli(capsys, *how, "--part", "0/3")[0] == 0
        assert cli(capsys, *how, "--part", "1/4")[0] == 10  # another N
        assert cli(capsys, *how, "--finish") == one  # which does the share that is missing
        assert not list(work.rglob("*"))
    assert {one: one.stat().st_mtime_ns for one in path.rglob("*")} == before


def test_marks_of_another_check_and_of_data_that_changed_are_refused(tmp_path: Path) -> None:
    path, work = mds(tmp_path), tmp_path / "marks"
    verify_shared(path, work=work, part=(0, 2))
    with pytest.raises(ConfigError, match="unfinished work for this output differs: --depth"):
        verify_shared(path, work=work, part=(1, 2), depth="full")
    with pytest.raises(ConfigError, match="is inside the dataset"):
        verify_shared(path, work=path / "marks", part=(0, 2))
    with pytest.raises(ConfigError, match=r"'pbin' at depth sample can't be distributed.*Use --depth full"):
        verify_shared(pbin(tmp_path), work=work, part=(0, 2))
    with ps.create(path, format="mds", columns={"t": "str"}, overwrite=True) as writer:
        writer.write({"t": "another"})
    with pytest.raises(ConfigError, match=r"the input .*index\.json changed after this job started"):
        verify_shared(path, work=work)
    verify_shared(path, work=work, no_work=True, restart=True)
    verify_shared(path, work=work, part=(0, 2))
    (mark,) = work.rglob("*.part")
    flip(mark, 3)
    with pytest.raises(
        Corrupt, match=r"a record of the distributed job is damaged.*Check again: restart \(--finish --restart\)"
    ):
        verify_shared(path, work=work)
    assert not work_within(path).exists()
    with pytest.raises(
        ConfigError, match=r"found restart.*Discard finished work once with --finish --no-work --restart"
    ):
        verify_shared(path, work=work, part=(1, 2), restart=True)
    assert verify_shared(path, work=work, no_work=True, restart=True).missing == (0,)
    verify_shared(path, work=work, part=(0, 3))  # by another N, as nothing is left
    (mark,) = work.rglob("*.part")
    flip(mark, 3)
    assert verify_shared(path, work=work, restart=True, depth="full").findings == []
    assert not list(work.rglob("*"))


def test_what_goes_with_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = mds(tmp_path)
    for words in ((), ("--finish",), ("--part", "0/2"), ("--work", tmp_path / "marks")):
        assert cli(capsys, "verify", path, "--restart", *words)[0] == ConfigError.exit_status
    assert cli(capsys, "verify", path, "--restart", "--finish", "--work", tmp_path / "marks")[0] == 0


def test_a_share_checks_its_share_and_no_more(tmp_path: Path) -> None:
    path, work = mds(tmp_path), tmp_path / "marks"
    whole, done = Counting(), list[int]()
    verify(path, depth="full", executor=whole)
    for share in range(4):
        own = Counting()
        verify_shared(path, work=work, part=(share, 4), depth="full", executor=own)
        done.append(own.num_tasks)
    assert sum(done) == whole.num_tasks
    assert max(done) - min(done) <= 1
    own = Counting()
    assert verify_shared(path, work=work, depth="full", executor=own).findings == []
    assert own.num_tasks == 0


@pytest.mark.parametrize("work", ["s3://bucket/marks", "marks"])
def test_shares_of_what_is_in_a_bucket(work: str, tmp_path: Path, s3_server: str) -> None:
    del s3_server
    store, root = resolve("s3://bucket/verified")
    path = mds(tmp_path)
    flip(sorted(path.glob("*.mds"))[4], 6)
    for file in path.iterdir():
        put(store, f"{root}/{file.name}", file.read_bytes())
    marks = work if "://" in work else tmp_path / work
    alone = verify("s3://bucket/verified")
    assert alone
    for share in range(3):
        verify_shared("s3://bucket/verified", work=marks, part=(share, 3))
    assert verify_shared("s3://bucket/verified", work=marks, no_work=True).findings == alone


def cli(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(tuple(map(str, arguments)))
    return int(ended.value.code or 0), capsys.readouterr().out
