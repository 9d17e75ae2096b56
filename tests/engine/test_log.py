"""What shares of an array tell of themselves: who is at work, where, and why who failed."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest
from tests.internals import Place, begin_log, end_log, log_entries, place_of, unsettled_work, work_beside

import penstock as ps
from penstock.errors import ConfigError
from penstock.store import LocalStore


@pytest.fixture
def folder(tmp_path: Path) -> Place:
    return place_of(tmp_path / "log")


def test_only_what_was_not_made_good_is_told(folder: Place) -> None:
    assert unsettled_work(folder) == []
    killed = begin_log(folder, (1, 3))
    failed = begin_log(folder, (2, 3))
    end_log(folder, failed, ConfigError("unknown tokenizer"))
    assert [(one.share, one.host) for one in unsettled_work(folder)] == [
        ("1/3", platform.node()),
        ("2/3", platform.node()),
    ]
    assert unsettled_work(folder)[1].error == "unknown tokenizer"
    end_log(folder, killed, None)
    assert [one.share for one in unsettled_work(folder)] == ["2/3"]


def test_a_run_elsewhere_makes_good_what_was_killed_here(folder: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_log(folder, (1, 3))
    monkeypatch.setattr(platform, "node", lambda: "another/../host")
    end_log(folder, begin_log(folder, (1, 3)), None)
    assert len(log_entries(folder)) == 2
    assert unsettled_work(folder) == []


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"[]", b"\xff", b"[" * 9000),
        *(b'{"share": "1/3", "host": "a", "process": 1, "began_s": %s}' % time for time in (b"1e300", b"-1", b"null")),
    ],
)
def test_what_is_damaged_is_left_out(data: bytes, folder: Place) -> None:
    begin_log(folder, None)
    Path(folder.path, "damaged").write_bytes(data)
    assert [one.share for one in unsettled_work(folder)] == ["finish"]


def test_secrets_are_not_told(folder: Place) -> None:
    end_log(folder, begin_log(folder, (0, 1)), OSError(5, "no answer", "https://me:secret@host/data?token=secret"))
    assert "secret" not in str(log_entries(folder))


def test_the_command_tells_them_and_whoever_cannot_write_works_on(
    tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n' * 9)
    how = [
        "convert",
        f"{tmp_path}/a.jsonl",
        f"{tmp_path}/out",
        "--to",
        "mds",
        "--group-rows",
        "3",
        "--size-limit",
        "99",
    ]
    stage = LocalStore.stage

    def full(store: LocalStore, path: str, **options: Any) -> Any:
        if "/log/" in path:
            raise OSError(28, "No space left on device", path)
        return stage(store, path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "stage", full)
        assert cli(*how, "--part", "0/3")[0] == 0
    (tmp_path / "a.jsonl").rename(tmp_path / "b.jsonl")
    work = next(work_beside(tmp_path / "out").glob("*/plan-00000")).parent
    end_log(place_of(work / "log"), begin_log(place_of(work / "log"), (1, 3)), OSError("two\nlines"))
    begin_log(place_of(work / "log"), None)
    code, said = cli("status", f"{tmp_path}/out")
    assert code == 14
    assert f"part 1/3 on {platform.node()}: failed at 20" in said
    assert ": two lines\n" in said
    assert "finalize step on " in said
    assert "or killed" in said
    (tmp_path / "b.jsonl").rename(tmp_path / "a.jsonl")
    assert cli(*how, "--finish")[0] == 0
    assert len(ps.open(tmp_path / "out")) == 9
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
