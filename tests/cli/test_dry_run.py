"""`--dry-run`: no call that writes, the refusals of the real run, and its counts."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.cli.main import main
from penstock.store.resolve import resolve

TOKENIZER = Path(__file__).parents[1] / "golden/modalities/tokenizers/bpe2/tokenizer.json"

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

WATCHED = """
import os, shlex, sys
from penstock.cli.main import main
from penstock.store.resolve import resolve

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


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [{"__key__": f"k{number}", "n": number, "text": f"document {number}"} for number in range(9)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    Path("a.jsonl").write_text(lines)
    Path("there.jsonl").write_text(lines[: lines.find("\n") + 1])
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
    for name in ("split", "strangers", "shut", "tars_there/tars_train"):
        os.makedirs(name)
    Path("split/a_train.jsonl").touch()
    Path("tars_there/tars_train/x").touch()
    Path("strangers/notes").touch()
    return tmp_path


def run(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[Any, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(line))
    told = capsys.readouterr()
    return ended.value.code, told.out, told.err


def test_no_call_writes(home: Path) -> None:
    before = sorted(str(path) for path in home.rglob("*"))
    where = os.environ | {"PENSTOCK_CACHE": str(home / "none")}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED], input="\n".join(LINES), env=where, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "warning: everything fits, and nothing is left out\n")
    assert done.stdout.count("nothing was written (--dry-run)") == len(LINES)
    assert sorted(str(path) for path in home.rglob("*")) == before


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
    dry, real = run(f"{line} --dry-run", capsys), run(line, capsys)
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
    assert len(foreseen.pop("reads")) == (2 if line.startswith("merge") else 1)
    assert len(foreseen.pop("replaces")) == ("--overwrite" in line)
    assert _counts(foreseen) == _counts(found)


def _counts(told: Any) -> Any:
    """What is counted, without bytes, digests and times."""
    if isinstance(told, dict):
        times = ("copy_seconds", "verify_seconds", "kept_bytes", "groups", "reused_groups")
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
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication

    asked: list[tuple[str, str]] = []
    really = DomainDispatcherApplication.__call__

    def watched(self: Any, environ: dict[str, Any], start_response: Any) -> Any:
        asked.append((environ["REQUEST_METHOD"], environ["PATH_INFO"]))
        return really(self, environ, start_response)

    bucket = f"s3://bucket/{home.name}"
    for name in ("a.jsonl", "there.jsonl", "t.pbin"):
        store, path = resolve(f"{bucket}/{name}")
        staged = store.stage(path)
        staged.write(Path(name).read_bytes())
        staged.commit()
    # What was found out of far files may be kept there: it is no part of the output.
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path_factory.mktemp("cache")))
    before = sorted(str(path) for path in home.rglob("*"))
    monkeypatch.setattr(DomainDispatcherApplication, "__call__", watched)
    status, told, said = run(f"{line.format(bucket)} --dry-run", capsys)
    assert (status, "nothing was written (--dry-run)" in told) == (0, True), said
    assert {method for method, _ in asked} <= {"GET", "HEAD"}, asked
    assert asked, "the data are there"
    assert sorted(str(path) for path in home.rglob("*")) == before
