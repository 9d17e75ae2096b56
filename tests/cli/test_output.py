"""What commands show on standard error: progress as lines, notes, and what an interrupt keeps."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.cli.called import report, run
from tests.internals import add_common, command_of, counted, current, main, nearest, note, progress, replace
from tests.internals import log_secrets as logger

import penstock as ps


def ticking(step: float) -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += step


def shown(capsys: pytest.CaptureFixture[str], *arguments: str, step: float = 5.0) -> list[str]:
    """The lines of a verb of 12 steps, each of which looks at the clock a few times, `step` seconds apart."""
    clock = ticking(step)

    @click.command()
    def verb() -> None:
        with progress("pack", total=None, clock=lambda: next(clock)) as advance:
            for done in range(1, 13):
                advance(done * 1_000_000, f"{done} documents", 12_000_000)
        note("a note")

    add_common(verb).main([*arguments], standalone_mode=False)
    return capsys.readouterr().err.splitlines()


def test_without_a_terminal_a_line_comes_every_30_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys)
    assert lines[-1] == "a note"
    assert 1 < len(lines) < 6
    assert lines[0].startswith("pack: 6.0 MB of 12.0 MB (50%), ")
    assert lines[0].endswith(" s left; 6 documents")
    assert shown(capsys, step=0.1) == ["a note"]  # no word of a short one


def test_progress_as_json_is_an_object_a_line_and_one_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.loads(line) for line in shown(capsys, "--progress", "json", step=0.0001)]
    assert lines.pop() == {"level": "info", "message": "a note"}
    assert [(one["done"], one["total"], one["left_seconds"]) for one in lines] == [(12_000_000, 12_000_000, 0.0)]
    assert len(shown(capsys, "--progress", "json")) > 6


@pytest.mark.parametrize(
    ("line", "levels"),
    [
        (("filter", "a.jsonl", "-o", "o.jsonl", "--where", "a > 0"), [None, "warning"]),
        (("info", "a.jsonl"), ["warning", None]),
        (("info", "nothere.jsonl"), ["error"]),
        (("info",), ["error"]),
        (("nothere",), ["error"]),
    ],
)
@pytest.mark.parametrize("how", [("--progress", "json"), ("--progress=json",), ("-v", "--progress", "json"), ()])
def test_with_progress_as_json_everything_on_standard_error_is_an_object(
    line: tuple[str, ...],
    levels: list[str | None],
    how: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A warning, a log, an error and wrong usage, among objects of progress."""
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    monkeypatch.chdir(tmp_path)
    if not how:
        monkeypatch.setenv("PENSTOCK_PROGRESS", "json")
    if line == ("info", "a.jsonl"):
        describe = command_of("info").callback

        def warned(**options: object) -> None:
            logger().warning("a %s", "log")
            describe(**options)

        monkeypatch.setattr(command_of("info"), "callback", warned)
    with pytest.raises(SystemExit):
        main([*how, *line])
    said = [json.loads(one) for one in capsys.readouterr().err.splitlines()]
    assert [one.get("level") for one in said if one.get("level") not in ("debug", "info")] == levels
    assert all(one["message"] for one in said if "level" in one)


def test_quiet_says_nothing_and_none_shows_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "--progress", "none") == ["a note"]
    assert shown(capsys, "-q") == []
    assert len(shown(capsys, "-q", "--progress", "plain")) > 1


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (0, "stopped. Re-run the same command to resume, or add --restart to start over"),
        (1, "stopped: 1 of 3 tasks kept. Re-run the same command to resume, or add --restart to start over"),
    ],
)
def test_an_interrupt_of_shared_work_says_what_is_kept(
    tmp_path: Path, before: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.internals import WorkStatus

    from penstock.errors import NotFound

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def status_of(_: object) -> WorkStatus:
        if not before:
            raise NotFound("nothing")
        return WorkStatus("o", complete=False, tasks=3, done=before)

    monkeypatch.setattr(importlib.import_module("penstock.convert"), "convert", interrupted)
    replace(monkeypatch, "plan_status", status_of)
    with pytest.raises(SystemExit) as ended:
        main(["convert", str(tmp_path / "a.jsonl"), str(tmp_path / "o"), "--to", "mds"])
    assert (ended.value.code, capsys.readouterr().err.strip()) == (130, f"penstock: {said}")


def test_only_near_names_are_suggested() -> None:
    assert nearest("</s>", ["<>", "<pad>"]) is None
    assert nearest("txt", ["id", "text"]) == "text"


def test_one_has_no_plural() -> None:
    assert (counted(1, "error"), counted(0, "warning"), counted(2000, "error")) == (
        "1 error",
        "0 warnings",
        "2,000 errors",
    )


def test_a_line_comes_while_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace(monkeypatch, "seconds_between_lines", 0.01)

    @click.command()
    def verb() -> None:
        with progress("verify", total=None) as advance:
            advance(5_000_000)
            while "verify: 5.0 MB" not in capsys.readouterr().err:
                pass

    add_common(verb).main([], standalone_mode=False)


@pytest.mark.parametrize("how", [(), ("--progress", "json"), ("-q",)])
def test_a_command_that_reports_nothing_says_what_it_has_read(
    how: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n')
    heard: list[str] = []
    really = current("ticking")

    def wait(*_: object, **__: object) -> list[object]:
        for _ in range(50 if how == ("-q",) else 10_000):
            heard.append(capfd.readouterr().err)
            if "".join(heard).count("\n") > 1:
                break
        return []

    replace(monkeypatch, "ticking", lambda tick: really(tick, 0.001))
    monkeypatch.setattr("penstock.check.verify", wait)
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(path), *how])
    assert ended.value.code == 0
    said = "".join(heard).splitlines()
    if how == ("-q",):
        assert said == []
    elif how:
        assert json.loads(said[0])["label"] == "verify"
    else:
        assert said[0].startswith("verify: ")
        assert said[0].endswith(" elapsed")


def test_info_of_samples_of_very_many_parts_stays_short(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with ps.create(tmp_path / "tars", format="webdataset") as writer:
        writer.write({"__key__": "a", **{f"p{number}.txt": b"x" for number in range(3000)}})
        writer.write({"__key__": "b", "txt": b"xyz"})
    out, _ = run(capsys, "info", tmp_path / "tars")
    assert len(out) < 10_000
    assert "and 2,961 more of the first 2" in out
    assert "more parts" in out
    assert "sample lengths in stored bytes, of all 2 samples" in out
    found = report(capsys, "info", tmp_path / "tars")
    assert (len(found["first_samples"]["fields"]), found["first_samples"]["more_fields"]) == (1000, 2001)
    assert found["sample_lengths"]["quantiles"][-1][1] == 3000 * 1024
