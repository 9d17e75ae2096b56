"""`--dry-run`: no call that writes, the refusals of the real run, and its counts."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from tests import moto_s3
from tests.internals import CLI_MODULE, COMMANDS, cli, main

import penstock as ps
from penstock.store import resolve

TOKENIZER = Path(__file__).parents[1] / "golden/modalities/tokenizers/bpe2/tokenizer.json"

NO_DRY_RUN = {
    "demo": "makes its own data, in a folder of its own",
    "prepare": "what it would do is asked for on a terminal before it is done",
}
"""Verbs with `--overwrite` or `-o` alone."""

LINES = (
    "filter a.jsonl -o o.jsonl --where 'n > 3'",
    "filter a.jsonl -o there.jsonl --where 'n > 3' --overwrite",
    "filter t.pbin -o o.pbin --min-tokens 2",
    "split a.jsonl -o parts --ratio 3,1",
    "split a.jsonl -o deep/er/parts --ratio 3,1 --by content",
    "split t.pbin -o parts --ratio 1,1",
    "split tars -o parts --ratio 3,1",
    "merge a.jsonl there.jsonl -o o.jsonl",
    "merge t.pbin t.pbin -o o.idx --to megatron",
    "merge mds mds -o o",
    "merge tars2 tars -o o",
    "split a.jsonl -o o.jsonl --only 1 --parts 2",
    "split t.pbin -o there.jsonl.pbin --only 0 --parts 3 --keep-map",
    "shuffle a.jsonl -o o.jsonl --seed 3",
    "shuffle t.pbin -o t2.pbin --seed 3 --workers 2",
    "shuffle mds -o o --seed 3",
    "shuffle tars -o o --seed 3",
    "exclude a.jsonl --key k1 --reason asked",
    "exclude a.jsonl --where 'n > 3' --reason asked --list new/list",
    "exclude gone.jsonl --undo",
    "exclude gone.jsonl --undo --key k2",
    "purge gone.jsonl -o o.jsonl",
    "purge gone.jsonl -o there.jsonl --overwrite",
    "purge t.pbin -o o.pbin --list t.list",
    "index a.jsonl",
    "index a.jsonl --flavor energon --index-path o.jsonl.idx",
    "index a.jsonl there.jsonl",
    "index old.jsonl --overwrite",
    "report a.jsonl -o o.html",
    "report mds -o deep/o.html",
    "convert a.jsonl o --to mds",
    "convert a.jsonl o --to webdataset",
    "convert mds o.jsonl",
    "convert t.pbin o.zarr",
    "convert t.pbin mds --to mds --overwrite",
    f"pack a.jsonl -o o.pbin --tokenizer {TOKENIZER} --executor inline --engine tokenizers",
    f"pack a.jsonl -o o/ --tokenizer {TOKENIZER} --executor inline --engine tokenizers --keep-map",
)

REFUSED = (
    "filter a.jsonl -o a.jsonl --where 'n > 3'",
    "filter a.jsonl -o there.jsonl --where 'n > 3'",
    "filter a.jsonl -o o.jsonl --where 'm > 3'",
    "filter a.jsonl -o o.jsonl --where 'n > 3' --executor procesess",
    "filter t.pbin -o shut/o.pbin --max-tokens 2",
    "split a.jsonl -o split --ratio 3,1",
    "split a.jsonl -o shut/parts --ratio 3,1",
    "split tars -o tars_there --ratio 3,1",
    "merge a.jsonl t.pbin -o o.pbin",
    "merge a.jsonl a.jsonl -o o.jsonl --keep-map",
    "split a.jsonl -o there.jsonl --only 0 --parts 2",
    "split a.jsonl -o a.jsonl --only 0 --parts 2 --overwrite",
    "split a.jsonl -o o.jsonl --only 2 --parts 2",
    "split t.pbin -o shut/o.pbin --only 0 --parts 2",
    "split a.jsonl -o o.jsonl --only 0 --parts 2 --keep-map --excludes nosuch",
    "shuffle a.jsonl -o there.jsonl --seed 1",
    "shuffle mds -o strangers --seed 1 --overwrite",
    "shuffle t.pbin -o o.pbin --seed 1 --executor procesess",
    "shuffle tars -o tars --seed 1 --overwrite",
    "shuffle a.jsonl -o shut/o.jsonl --seed 1",
    "exclude a.jsonl --key nosuch --reason asked",
    "exclude a.jsonl --key k1",
    "exclude a.jsonl --key k1 --reason asked --list strangers",
    "exclude a.jsonl --key k1 --reason asked --list shut/list",
    "exclude a.jsonl --key k1 --reason asked --also there.jsonl",
    "index old.jsonl",
    "index bad.jsonl",
    "index old.jsonl bad.jsonl",
    "index a.jsonl --index-path a.jsonl --overwrite",
    "index a.jsonl --index-path shut/o.idx",
    "report a.jsonl -o there.html",
    "report a.jsonl -o notes.html --overwrite",
    "report a.jsonl -o shut/o.html",
    "report a.jsonl -o o.pdf",
    "purge a.jsonl -o o.jsonl",
    "purge gone.jsonl -o there.jsonl",
    "purge gone.jsonl -o gone.jsonl --overwrite",
    "purge gone.jsonl -o shut/o.jsonl",
    "purge gone.jsonl -o o.parquet",
    "merge mds mds -o strangers --overwrite",
    "merge t.pbin -o there.jsonl/o.pbin",
    "convert a.jsonl mds --to mds",
    "convert a.jsonl strangers --to webdataset --overwrite",
    "convert t.pbin a.pbin -O nosuch=1",
    "convert a.jsonl o --to mds -O compression=rar",
    f"pack a.jsonl -o t.pbin --tokenizer {TOKENIZER}",
    f"pack a.jsonl -o shut/o.pbin --tokenizer {TOKENIZER} --executor inline --engine tokenizers",
    f"pack a.jsonl -o strangers/ --tokenizer {TOKENIZER} --executor inline --engine tokenizers",
    f"pack a.jsonl -o o.pbin --tokenizer {TOKENIZER} --field nosuch --executor inline --engine tokenizers --eos nosuch",
)

WATCHED = (
    f"from {CLI_MODULE} import main"
    + """
import os, shlex, sys
from penstock.store import resolve

writes, wrong = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC, []
changes = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
           "os.utime", "os.chown", "tempfile.mkstemp", "tempfile.mkdtemp"}

def watch(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)) and arguments[2] & writes:
        wrong.append((event, arguments[0]))
    elif event in changes:
        wrong.append((event, arguments))

sys.dont_write_bytecode = True
sys.addaudithook(watch)
for line in sys.stdin.read().splitlines():
    try:
        main([*shlex.split(line), "--dry-run"])
    except SystemExit as ended:
        if ended.code or [one for one in wrong if one[1] != os.devnull]:
            sys.exit(f"{line}: {ended.code} {wrong}")
"""
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [{"__key__": f"k{number}", "n": number, "text": f"document {number}"} for number in range(9)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    Path("a.jsonl").write_text(lines)
    Path("there.jsonl").write_text(lines[: lines.find("\n") + 1])
    Path("gone.jsonl").write_text(lines)
    ps.exclude("gone.jsonl", key=["k2", "k5"], reason="asked")
    with ps.create("t.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
        for length in range(1, 5):
            writer.write({"tokens": np.array([5] * length + [0], np.uint16)})
    with ps.create("mds", format="mds", columns={"text": "str"}) as writer:
        for row in rows:
            writer.write({"text": row["text"]})
    for name in ("tars", "tars2"):
        with ps.create(name, format="webdataset") as writer:
            for row in rows:
                writer.write({"__key__": f"{name}{row['n']}", "txt": row["text"]})
    ps.exclude("t.pbin", indices=[1], reason="asked", list="t.list")
    for name in ("split", "strangers", "shut", "tars_there/tars_train"):
        os.makedirs(name)
    Path("split/a_train.jsonl").touch()
    Path("one").write_text("1\n")
    for name in ("there.html", "notes.html"):
        Path(name).write_text("notes")
    Path("bad.jsonl").write_text(lines + "{\n")
    Path("old.jsonl").write_text(lines)
    ps.index("old.jsonl", overwrite=True)
    Path("old.jsonl").write_text(lines * 2)
    Path("tars_there/tars_train/x").touch()
    Path("strangers/notes").touch()
    return tmp_path


def files_in(folder: Path) -> dict[str, bytes | None]:
    """Path → bytes of all files, None of folders."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def run(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[Any, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(line))
    told = capsys.readouterr()
    return ended.value.code, told.out, told.err


def test_no_call_writes(home: Path) -> None:
    before = files_in(home)
    where = os.environ | {"PENSTOCK_CACHE": str(home / "none")}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED], input="\n".join(LINES), env=where, capture_output=True, text=True, check=False
    )
    told = [
        one for one in done.stderr.splitlines() if not one.startswith("reads ")
    ]  # what shuffle says before it begins
    assert (done.returncode, told) == (0, ["warning: all samples match, so nothing was removed"])
    assert done.stdout.count("nothing was written (--dry-run)") == len(LINES)
    assert files_in(home) == before


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_refused_is_refused_for_the_same_reason(
    home: Path, line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "shut/" in line:  # by a file system that is only read: root may write anywhere else
        really = os.access
        monkeypatch.setattr(os, "access", lambda path, how: "shut" not in str(path) and really(path, how))
        status, _, said = run(f"{line} --dry-run", capsys)
        assert (status, "Permission denied" in said) == (18, True), said
        return
    before = files_in(home)
    dry = run(f"{line} --dry-run", capsys)
    assert files_in(home) == before
    real = run(line, capsys)
    assert dry[0] not in (0, 70)
    assert dry == real
    assert dry[1] == ""


def test_keys_that_come_twice_are_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("merge tars tars -o o --dry-run", "merge tars tars -o o"):
        status, _, said = run(line, capsys)
        assert (status, "key" in said) == (10, True)


def test_an_output_that_is_being_written_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ps.create("o.jsonl", format="jsonl"):
        status, _, said = run("merge a.jsonl -o o.jsonl --dry-run", capsys)
    assert (status, "another run is writing this output" in said) == (14, True)


@pytest.mark.parametrize("line", [one for one in LINES if "pack" not in one])
def test_counts_are_those_of_the_real_run(home: Path, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, dry, _ = run(f"{line} --dry-run --json", capsys)
    _, real, said = run(f"{line} --json", capsys)
    assert real, said
    foreseen, found = json.loads(dry), json.loads(real)
    assert foreseen.pop("dry_run") is True
    assert len(foreseen.pop("reads")) == (2 if line.startswith(("merge", "index a.jsonl there")) else 1)
    assert len(foreseen.pop("replaces")) == ("--overwrite" in line or "--undo" in line)
    assert _counts(foreseen) == _counts(found)


def _counts(told: Any) -> Any:
    """What is counted, without bytes, digests and times."""
    if isinstance(told, dict):
        times = ("time", "copy_seconds", "verify_seconds", "kept_bytes", "groups", "reused_groups")
        left_out = ("size_bytes", "token_bytes", "digest", *times)
        return {name: _counts(value) for name, value in told.items() if name not in left_out}
    return [_counts(one) for one in told] if isinstance(told, list) else told


def test_about_how_many_tokens_there_will_be(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("large.jsonl").write_text("".join(json.dumps({"text": f"word {n} " * 20}) + "\n" for n in range(3000)))
    line = f"pack large.jsonl -o large.pbin --tokenizer {TOKENIZER} --executor inline --engine tokenizers --json"
    foreseen, made = (json.loads(run(one, capsys)[1]) for one in (f"{line} --dry-run", line))
    for name in ("documents", "tokens"):
        assert abs(foreseen[name] - made[name]) < made[name] / 10


def test_about_how_many_tokens_of_long_lines(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = [100, 300, 1000, 40_000, 100, 5000] * 10  # most bytes lie in lines that are longer than what is looked at
    Path("long.jsonl").write_text("".join(json.dumps({"text": "word " * length}) + "\n" for length in lengths))
    line = f"pack long.jsonl -o long.pbin --tokenizer {TOKENIZER} --executor inline --engine tokenizers --json"
    foreseen, made = (json.loads(run(one, capsys)[1]) for one in (f"{line} --dry-run", line))
    assert abs(foreseen["tokens"] - made["tokens"]) < made["tokens"] / 10
    assert abs(foreseen["documents"] - made["documents"]) < made["documents"] / 2


@pytest.mark.parametrize(
    "line",
    [
        "filter {0}/a.jsonl -o {0}/o.jsonl --where 'n > 3'",
        "filter {0}/a.jsonl -o {0}/there.jsonl --where 'n > 3' --overwrite",
        "split {0}/a.jsonl -o {0}/parts --ratio 3,1",
        "merge {0}/a.jsonl {0}/there.jsonl -o {0}/o.jsonl",
        "merge {0}/t.pbin {0}/t.pbin -o {0}/o.pbin",
        "split {0}/a.jsonl -o {0}/o.jsonl --only 0 --parts 2",
        "shuffle {0}/a.jsonl -o {0}/o.jsonl --seed 1",
        "shuffle {0}/t.pbin -o {0}/o.pbin --seed 1",
        "purge {0}/t.pbin -o {0}/o.pbin --list far.list",
        "exclude {0}/t.pbin --indices one --reason asked --list new.list",
        "index {0}/a.jsonl",
        "report {0}/t.pbin -o {0}/o.html",
        "convert {0}/a.jsonl {0}/o --to mds",
        "convert {0}/a.jsonl {0}/o --to webdataset",
        "convert {0}/t.pbin {0}/o.zarr",
        f"pack {{0}}/a.jsonl -o {{0}}/o.pbin --tokenizer {TOKENIZER} --executor inline --engine tokenizers",
        f"pack {{0}}/a.jsonl -o {{0}}/o/ --tokenizer {TOKENIZER} --executor inline --engine tokenizers --keep-map",
    ],
)
def test_a_bucket_gets_no_request_that_writes(
    home: Path,
    line: str,
    s3_server: str,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests: list[tuple[str, str]] = []
    answer = moto_s3.answer

    def watched(request: moto_s3.Request) -> moto_s3.Answer:
        requests.append((request.method, request.path))
        return answer(request)

    bucket = f"s3://bucket/{home.name}"
    for name in ("a.jsonl", "there.jsonl", "t.pbin"):
        store, path = resolve(f"{bucket}/{name}")
        staged = store.stage(path)
        staged.write(Path(name).read_bytes())
        staged.commit()
    ps.exclude(f"{bucket}/t.pbin", indices=[1], reason="asked", list="far.list")
    # What was found out of far files may be kept there: it is no part of the output.
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path_factory.mktemp("cache")))
    before = files_in(home)
    monkeypatch.setattr(moto_s3, "answer", watched)
    status, told, said = run(f"{line.format(bucket)} --dry-run", capsys)
    assert (status, "nothing was written (--dry-run)" in told) == (0, True), said
    assert {method for method, _ in requests} <= {"GET", "HEAD"}, requests
    assert requests, "the data are there"
    assert files_in(home) == before


def test_every_verb_that_makes_a_dataset_has_it() -> None:
    """Whatever has `--overwrite`, but for those that say why not; so no verb is forgotten."""
    context, found = click.Context(cli), set[str]()
    for name in COMMANDS:
        command = cli.get_command(context, name)
        names = {one for option in command.params for one in option.opts} if command else set[str]()
        if names & {"--overwrite", "-o"} and "--dry-run" not in names:
            found.add(name)
    assert found == NO_DRY_RUN.keys()


@pytest.mark.parametrize("flavor", ["modalities", "energon"])
def test_indexes_of_many_small_files_are_not_written(
    tmp_path: Path, flavor: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(40):
        (tmp_path / f"{number}.jsonl").write_text('{"n": 1}\n')
    before = files_in(tmp_path)
    status, said, _ = run(f"index {tmp_path} --flavor {flavor} --dry-run", capsys)
    assert (status, files_in(tmp_path)) == (0, before)
    assert "40 lines" in said
    assert run(f"index {tmp_path} --flavor {flavor}", capsys)[0] == 0
    assert len(files_in(tmp_path)) == 80
