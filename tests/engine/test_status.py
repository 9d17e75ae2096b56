"""`penstock status` of work that is shared by parts: of every verb that takes them, in each of its states."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.cli.called import called
from tests.internals import COMMANDS, place_of, put
from tests.internals import cli as group

import penstock as ps

TOKENIZER = Path(__file__).parent.parent / "golden" / "modalities" / "tokenizers" / "bpe2"

VERBS = {
    "pack": ("pack IN/lines -o OUT/out/ --tokenizer TOKENIZER --file-tokens 60 --executor inline", "OUT/out/", 9),
    "convert": ("convert IN/lines OUT/out --to mds --executor inline", "OUT/out", 9),
    "prepare": (
        "prepare IN/tars --non-interactive --split-ratio 2,1,0 --sample-type CrudeWebdataset --executor inline",
        "IN/tars",
        0,
    ),
    "prepare-media": ("prepare-media IN/media --executor inline", "IN/media", 0),
    "index": ("index IN/lines --executor inline", "IN/lines", 0),
    "verify": ("verify IN/files --work OUT/marks --executor inline", "OUT/marks", 9),
    "filter": ("filter IN/a.pbin -o OUT/out.pbin --min-tokens 2", "OUT/out.pbin", 9),
    "split": ("split IN/a.pbin -o OUT/parts --ratio 2,1", "OUT/parts", 9),
    "shuffle": ("shuffle IN/a.pbin -o OUT/out.pbin --seed 1", "OUT/out.pbin", 9),
    "merge": ("merge IN/a.pbin IN/b.pbin -o OUT/out.pbin", "OUT/out.pbin", 9),
}
"""Verb → command, what its status is asked by, and how that ends before any work."""


def cli(*words: str) -> tuple[int, str]:
    """Exit status, and what was said on both streams."""
    done = called(*words)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "lines").mkdir()
    for name in "abcde":
        lines = "".join(json.dumps({"text": f"{name} {number} and more words"}) + "\n" for number in range(5))
        (folder / "lines" / f"{name}.jsonl").write_text(lines)
    for name in ("a", "b"):
        with ps.create(folder / f"{name}.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
            for size in range(2, 8):
                writer.write({"tokens": [*range(1, size), 0]})
    with ps.create(folder / "tars", format="webdataset", maxcount=1) as writer:
        for number in range(5):
            writer.write({"__key__": f"k{number}", "txt": f"text {number}"})
    for path in [*(folder / "tars" / ".nv-meta").iterdir(), *(folder / "tars").glob("*.idx")]:
        path.unlink()
    (folder / "tars" / ".nv-meta").rmdir()
    _images(folder / "media")
    how: dict[str, Any] = {"tokenizer": TOKENIZER, "file_tokens": 40, "executor": "inline"}
    ps.pack([folder / "lines"], folder / "files", **how)
    return folder


def _images(folder: Path) -> None:
    from PIL import Image

    folder.mkdir()
    for number in range(5):
        Image.new("RGB", (number + 1, 2)).save(folder / f"{number}.png")


@pytest.fixture(params=["disk", "s3"])
def root(request: pytest.FixtureRequest, inputs: Path, tmp_path: Path) -> str:
    """A folder with the inputs, on this machine or in a bucket."""
    if request.param == "s3":
        request.getfixturevalue("s3_server")
    base = str(tmp_path) if request.param == "disk" else f"s3://bucket/status/{tmp_path.name}"
    for path in inputs.rglob("*"):
        if path.is_file():
            place = place_of(f"{base}/in/{path.relative_to(inputs)}")
            put(place.store, place.path, path.read_bytes())
    return base


def test_every_verb_that_takes_parts_is_here() -> None:
    import click

    context = click.Context(group)
    commands = {name: group.get_command(context, name) for name in COMMANDS}
    taking = {name for name, one in commands.items() if one and any("--part" in option.opts for option in one.params)}
    assert taking == VERBS.keys()


@pytest.mark.parametrize("verb", VERBS)
def test_each_state(verb: str, root: str) -> None:
    line, asked, before = VERBS[verb]
    names = {"IN": f"{root}/in", "OUT": f"{root}/out", "TOKENIZER": str(TOKENIZER)}
    for name, value in names.items():
        line, asked = line.replace(name, value), asked.replace(name, value)
    words = shlex.split(line)

    def status() -> tuple[int, str]:
        return cli("status", asked)

    assert status()[0] == before, status()
    done = cli(*words, "--part", "0/3")
    assert done[0] == 0, done
    code, said = status()
    assert code == 14, said
    missing_code, missing = cli(*words, "--finish", "--no-work")
    assert missing_code in (0, 14), missing
    if missing_code == 14:  # of little work the first share may have been all of it
        assert "next: " in said
        for part in ("1/3", "2/3"):
            assert cli(*words, "--part", part)[0] == 0
        assert status()[0] == (0 if verb == "index" else 14)
        assert cli(*words, "--finish", "--no-work")[0] == 0
    assert status()[0] == (9 if verb == "verify" else 0), status()


def test_a_folder_where_some_files_have_an_index(inputs: Path, tmp_path: Path) -> None:
    """By either flavor, of a pattern too; a folder where none has one is a dataset as it is."""
    folder = tmp_path / "some"
    (folder / "deep").mkdir(parents=True)
    for name in ("a.jsonl", "b.jsonl", "deep/c.ndjson"):
        (folder / name).write_bytes((inputs / "lines" / "a.jsonl").read_bytes())
    assert cli("status", str(folder))[0] == 0
    ps.index(folder / "deep" / "c.ndjson", flavor="energon")
    assert cli("status", str(folder)) == (
        14,
        f"{folder}: 1 of 3 files have an index\n"
        f"  next: `penstock index {folder} --finish`; --no-work lists files without an index\n",
    )
    ps.index(folder / "a.jsonl")
    assert cli("status", f"{folder}/*.jsonl")[0] == 14
    found = json.loads(cli("status", f"{folder}/*.jsonl", "--json")[1])
    assert (found["complete"], found["tasks"], found["done"], found["missing"]) == (False, 2, 1, 1)
    ps.index(folder)
    assert cli("status", str(folder))[0] == cli("status", f"{folder}/*.jsonl")[0] == 0


def test_a_folder_without_a_job(tmp_path: Path) -> None:
    """It opens as a dataset; outputs in it may still be unfinished."""
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "a.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    assert cli("status", str(photos)) == (0, f"{photos}: a dataset; no Penstock job is recorded here\n")
    made = cli("shuffle", f"{photos}/a.jsonl", "-o", f"{photos}/x.jsonl", "--part", "0/3")
    assert made[0] == 0, made
    (photos / "a.idx").unlink(missing_ok=True)
    assert cli("status", str(photos)) == (
        0,
        f"{photos}: a dataset; no Penstock job is recorded here\n  unfinished: {photos}/x.jsonl\n",
    )
    ps.convert(photos / "a.jsonl", tmp_path / "shards", to="mds")
    assert cli("status", f"{tmp_path}/shards") == (0, f"{tmp_path}/shards: complete\n")


def test_a_killed_commit_is_unfinished(tmp_path: Path) -> None:
    """Some parts of a split are new then, and others old."""
    source, parts = tmp_path / "c.jsonl", tmp_path / "parts"
    source.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(30)))
    ps.split(source, parts, ratio=(8, 1, 1))
    assert cli("status", str(parts))[0] == 0
    pid = os.fork()
    if pid == 0:
        rename = os.rename

        def ends(old: Any, new: Any, *given: Any, **more: Any) -> None:
            if str(new).endswith("c_validation.jsonl"):
                os._exit(9)
            rename(old, new, *given, **more)

        os.rename = ends
        ps.split(source, parts, ratio=(8, 1, 1), seed=1, overwrite=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    status, text = cli("status", str(parts))
    assert status == 14
    assert "run the same command again" in text
    ps.split(source, parts, ratio=(8, 1, 1), seed=1, overwrite=True)
    assert cli("status", str(parts))[0] == 0
