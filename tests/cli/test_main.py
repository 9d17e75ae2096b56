"""The command line as a user meets it: its two streams and its exit status; of a process where that is the point."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from tests.cli.called import called
from tests.internals import CLI_MODULE, COMMANDS, cli, exit_codes, main
from tests.internals import COMMAND_EXAMPLES as EXAMPLES
from tests.internals import HIDDEN_COMMANDS as HIDDEN
from tests.internals import error_codes as codes

import penstock as ps


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "c.pbin"
    with ps.create(path, format="pbin", token_bytes=2, eos_id=0) as writer:
        for n_tokens in (3, 5, 2):
            writer.write({"tokens": np.r_[np.arange(1, n_tokens), 0].astype(np.uint16)})
    return path


def test_help_lists_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    for name in COMMANDS.keys() - HIDDEN.keys():
        assert f"\n  {name} " in done.stdout


def test_every_code_and_exit_status_is_explained_offline() -> None:
    done = run("--errors")
    assert (done.returncode, done.stderr) == (0, "")
    page = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()
    for code, _, status, text in codes():
        assert f"[{code}] exit {status}: {text.split()[0]} " in done.stdout
        assert f"### {code}\n" in page
    for status, _ in exit_codes():
        assert f"exit {status}: " in done.stdout


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("pbin.truncated", "shorter than its header states. fix: Copy the file again."),
        ("jsonl.changed", "differ from its side file. fix: Restore the data"),
        ("flat-tokens.seq_starts.codec.present", "An array of the group is missing."),
        ("jsonl.unsupported", "a variant that Penstock doesn't read"),
        ("corrupt", "contradicts another value"),
    ],
)
def test_a_code_is_explained_without_a_path(code: str, text: str) -> None:
    done = run("verify", "--explain", code)
    assert (done.returncode, done.stderr) == (0, "")
    assert text in " ".join(done.stdout.split())


def test_an_unknown_code_is_wrong_usage_that_names_a_similar_one() -> None:
    done = run("verify", "--explain", "pbin.trunc")
    assert done.returncode == 2
    assert "Did you mean pbin.truncated?" in done.stderr


def test_the_page_equals_the_live_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of each command, what `-h` prints on a terminal of 80 columns; and nothing else is on the page."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "docs" / "site"))
    page = importlib.import_module("commands").cli_page()
    names = re.findall(r"^## `penstock ?(.*)`$", page, re.MULTILINE)
    assert {name.split()[0] for name in names if name} == set(COMMANDS) == set(EXAMPLES)
    for name in names:
        with pytest.raises(SystemExit):
            main([*name.split(), "-h"])
        shown = capsys.readouterr().out
        assert f"## `{f'penstock {name}'.strip()}`\n\n```text\n{shown}```\n" in page
        assert name not in EXAMPLES or f"  {EXAMPLES[name]}\n" in shown


def test_the_examples_are_of_commands_and_options_that_there_are() -> None:
    for example in EXAMPLES.values():
        arguments = shlex.split(example.partition(" >")[0])[1:]
        command: click.Command | None = cli
        while isinstance(command, click.Group):
            command = command.get_command(click.Context(command), arguments.pop(0))
        assert command is not None
        command.make_context("example", arguments)


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("penstock pa", ["plain,pack"]),
        ("penstock convert a b --to m", ["plain,megatron", "plain,mds"]),
        ("penstock info --split v", ["plain,val", "plain,validation"]),
        ("penstock info x", ["file,x"]),
        ("penstock pack -o x", ["file,x"]),
        ("penstock verify --depth q", ["plain,quick"]),
    ],
)
def test_a_shell_completes(
    words: str, completed: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_PENSTOCK_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().out.split() == completed


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["completion", shell])
    assert ended.value.code == 0
    assert f"_PENSTOCK_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_doctor_names_versions_folders_and_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "none" / "yet"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://me:hidden@127.0.0.1:1")
    with pytest.raises(SystemExit):
        main(["doctor", "--json"])
    said = capsys.readouterr().out
    found = json.loads(said)
    assert found["versions"].items() >= {"penstock": ps.__version__, "numpy": np.__version__}.items()
    assert found["cache"]["path"] == str(tmp_path / "none" / "yet")
    assert (found["cache"]["size_bytes"], found["cores"] > 0) == (0, True)
    assert found["settings"]["PENSTOCK_DEBUG"] is None
    assert "hidden" not in said
    assert not (tmp_path / "none").exists()


def test_doctor_names_a_foreign_package_of_the_same_import_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "penstock-9.1.dist-info").mkdir()
    (tmp_path / "penstock-9.1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: penstock\nVersion: 9.1\n"
    )
    assert "pip uninstall" not in called("doctor").stdout
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "penstock (9.1) is installed" in called("doctor").stdout


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("PENSTOCK_CACHE", "s3://b/x", "s3://b/x: the cache folder must be a local path. Set PENSTOCK_CACHE"),
        ("XDG_CACHE_HOME", "s3://b/x", "s3://b/x/penstock: the cache folder must be a local path"),
        ("PENSTOCK_CACHE", "/dev/null", "/dev/null: the cache path is not a directory"),
        ("PENSTOCK_REMOTE_TRIES", "x", "invalid value for PENSTOCK_REMOTE_TRIES: found 'x'"),
        ("PENSTOCK_CACHE_BYTES", "-3", "invalid value for PENSTOCK_CACHE_BYTES"),
        ("PENSTOCK_CACHE_BYTE", "3", "PENSTOCK_CACHE_BYTE is not a known setting. Did you mean PENSTOCK_CACHE_BYTES?"),
    ],
)
def test_doctor_says_what_is_to_be_mended(
    variable: str, value: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PENSTOCK_CACHE", raising=False)
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit) as ended:
        main(["doctor"])
    assert ended.value.code == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("problem"))
    assert told in row


def test_exit_codes_differ() -> None:
    statuses = [status for status, _ in exit_codes()]
    assert len(set(statuses)) == len(statuses)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_command_explains_itself(name: str) -> None:
    done = called(name, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: penstock {name}")


def test_wrong_usage_is_status_2() -> None:
    assert run("nosuch").returncode == 2
    assert called("verify").returncode == 2
    assert called().returncode == 2


def test_a_refusal_names_the_file_and_shows_no_traceback(tmp_path: Path) -> None:
    for name in ("info", "head", "verify", "repair"):
        done = (run if name == "info" else called)(name, tmp_path / "gone.pbin")
        assert done.returncode == 9
        assert "gone.pbin" in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout == ""


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = run("--debug", "info", tmp_path / "gone.pbin")
    assert done.returncode != 0
    assert "Traceback" in done.stderr


def test_json_is_one_document_and_nothing_else(packed: Path) -> None:
    info = json.loads(called("info", packed, "--json").stdout)
    assert (info["format"], info["samples"], info["tokens"]) == ("pbin", 3, 10)
    head = json.loads(called("head", packed, "-n", 2, "--json").stdout)
    assert [one["tokens"] for one in head["samples"]] == [[1, 2, 0], [1, 2, 3, 4, 0]]
    assert json.loads(called("verify", packed, "--json").stdout)["findings"] == []
    assert json.loads(called("repair", packed, "--json").stdout)["actions"] == []


def test_text_for_people(packed: Path) -> None:
    assert "10" in called("info", packed).stdout
    assert called("head", packed, "-n", 1).stdout == '0: {"tokens": [1, 2, 0]}\n'
    assert "clean" in called("verify", packed).stdout


def test_verify_exits_1_for_an_error(packed: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.pbin"
    cut.write_bytes(packed.read_bytes()[:-9])
    done = called("verify", cut, "--format", "pbin")
    assert done.returncode == 1
    assert "fix:" in done.stdout


def test_convert_prints_the_digest(packed: Path, tmp_path: Path) -> None:
    done = called("convert", packed, tmp_path / "d.pbin", "--json")
    assert (
        json.loads(done.stdout)["digest"] == json.loads(called("info", packed, "--json").stdout)["manifest"]["digest"]
    )
    assert (tmp_path / "d.pbin").read_bytes() == packed.read_bytes()


def test_a_reader_that_goes_away_is_no_error(packed: Path) -> None:
    command = f"{sys.executable} -m penstock head {packed} -n 3 | head -c 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.parametrize("flags", [[], ["--debug"]])
def test_a_reader_that_is_gone_before_the_command_writes(packed: Path, flags: list[str]) -> None:
    """Written as it is made, not at the end alone."""
    code = f"import os, sys; os.environ['PYTHONUNBUFFERED'] = '1'; from {CLI_MODULE} import main; input(); main()"
    command = [sys.executable, "-u", "-c", code, "head", str(packed), "-n", "3", *flags]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        running.stdout.close()
        assert running.stdin is not None
        running.stdin.write("go\n")
        running.stdin.close()
        assert running.stderr is not None
        told = running.stderr.read()
    assert (running.returncode, told) == (0, "")


def test_another_pipe_that_breaks_is_an_error(
    packed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("penstock.check.summarise", broken)
    with pytest.raises(SystemExit) as ended:
        main(["info", str(packed)])
    assert ended.value.code not in (0, 1)
    assert "Broken pipe" in capsys.readouterr().err


def test_an_interrupt_says_so(
    packed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.check.summarise", interrupted)
    with pytest.raises(SystemExit) as ended:
        main(["info", str(packed)])
    assert (ended.value.code, capsys.readouterr().err) == (
        130,
        "\npenstock: stopped; nothing was changed\n",  # after what is shown: ^C
    )


class _PanicException(BaseException):
    """As Rust's bindings raise it."""


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (RuntimeError("deep\ninside"), 70, "unexpected error in Penstock 0"),
        (KeyError("name"), 70, "KeyError: 'name'"),
        (RecursionError("too deep"), 70, "RecursionError"),
        (RuntimeError("x" * 5000), 70, "(4,894 characters)"),
        (_PanicException("index out of range"), 70, "index out of range"),
        (MemoryError(), 18, "not enough memory"),
        (RuntimeError("can't start new thread"), 18, "can't start new thread. Use fewer workers"),
        (OSError(28, "No space left on device", "/some/where"), 18, "/some/where: No space left on device"),
        (OSError("nothing known"), 18, "nothing known"),
    ],
)
def test_what_nobody_thought_of_is_one_line_and_a_status_of_its_own(
    packed: Path,
    error: BaseException,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("penstock.check.summarise", fail)
    with pytest.raises(SystemExit) as ended:
        main(["info", str(packed)])
    told = capsys.readouterr()
    assert ended.value.code == status
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert said in told.err
    assert len(told.err) <= 300
    if status == 70:
        with pytest.raises(type(error)):
            main(["--debug", "info", str(packed)])


def test_a_broken_sample_is_told_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 0}\n{"n": 1}\n{"n": 2, "deep": {"a": [1, "x"], "b": null}}\n')
    ps.index(path)
    path.write_bytes(path.read_bytes().replace(b"1}", b"1 ", 1))
    head = called("head", path)
    first, broken, last = head.stdout.splitlines()
    assert (first, last) == ('0: {"n": 0}', '2: {"n": 2, "deep": {"a": [1, "x"], "b": null}}')
    assert broken.startswith('1: {"broken": "')
    preview = called("head", path, "--pictures")
    assert "broken: " in preview.stdout
    assert "sample 2 of 3" in preview.stdout
    for done in (head, preview):
        assert done.returncode == called("head", path, "--json").returncode == 6
        assert done.stderr.count("\n") == 1


def test_the_same_samples_by_the_same_options(tmp_path: Path) -> None:
    with ps.create(tmp_path / "set", format="webdataset") as writer:
        for number in range(5):
            writer.write({"__key__": f"k{number}", "txt": f"text {number}"})
    for more in ((), ("--pictures",)):
        for chosen in (("--index", 3), ("--key", "k3"), ("--start", 3, "-n", 1)):
            said = called("head", tmp_path / "set", *chosen, *more).stdout
            assert "text 3" in said
            assert "text 2" not in said
            assert "text 4" not in said
            assert "__restore_key__" not in said
            assert "__restore_key__" in called("head", tmp_path / "set", *chosen, *more, "--all").stdout


def in_bash(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)


def test_output_that_has_no_room_is_named(packed: Path) -> None:
    done = in_bash(f"{sys.executable} -m penstock info {packed} > /dev/full")
    assert (done.returncode, done.stderr) == (18, "penstock: standard output: No space left on device [system]\n")


def test_standard_input_that_is_closed_holds_nothing(tmp_path: Path) -> None:
    tokenizer = Path(__file__).parents[1] / "golden/modalities/tokenizers/word4"
    done = in_bash(f"{sys.executable} -m penstock pack - -o {tmp_path}/a.pbin --tokenizer {tokenizer} <&-")
    assert (done.returncode, done.stderr.count("\n")) == (14, 1)
    assert "nothing on standard input" in done.stderr


def test_no_file_gets_the_number_of_a_stream_that_is_closed(tmp_path: Path) -> None:
    """Else what a library prints would stand in a file of data."""
    code = (
        f"import contextlib, os, sys; from {CLI_MODULE} import main\n"
        "with contextlib.suppress(SystemExit): main(['--version'])\n"
        "with open(sys.argv[1], 'w') as told:\n"
        "    print(told.fileno() > 2, *[os.readlink(f'/proc/self/fd/{n}') for n in range(3)], file=told)"
    )
    done = in_bash(f"{sys.executable} -c {shlex.quote(code)} {tmp_path}/told <&- >&- 2>&-")
    assert done.returncode == 0
    assert (tmp_path / "told").read_text().split() == ["True", "/dev/null", "/dev/null", "/dev/null"]
