"""The mistakes of a first hour: each command line, its exit status, and the words that its message must hold."""

from __future__ import annotations

import gzip
import json
import os
import shlex
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from tests.internals import main

import penstock as ps

MOST_CHARACTERS = 300

MISTAKES: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    # What no format recognises: one line with the likeliest cause, and the verb that helps.
    ("info x.txt.gz", 7, ("gzip", "penstock pack")),
    ("info big.txt", 7, ("plain text", "--input-format text")),
    ("head pretty.json", 7, ("one JSON document", "jq -c")),
    ("info tokenizer.json", 7, ("a tokenizer, not data", "--tokenizer")),
    ("info recipe.yaml", 7, ("a recipe, not data", "penstock plan")),
    ("info table.csv", 7, ("table", "penstock convert")),
    ("info empty.bin", 7, ("an empty file",)),
    ("info empty.dat", 7, ("an empty file",)),
    ("info hollow", 7, ("an empty folder",)),
    ("info mixed", 7, ("a folder that is not a dataset", "mds/", "notes.jsonl")),
    ("info above", 7, ("a folder that is not a dataset", "tars/ (a prepared WebDataset)")),
    ("index corpus.jsonl.gz", 7, ("compressed", "gzip", "Every command reads it without one")),
    ("index indexed.jsonl.gz", 7, ("compressed", "gzip", "Every command reads it without one")),
    ("index empty.jsonl", 6, ("the file is empty",)),
    ("info empty.jsonl", 6, ("the file is empty", "`penstock index empty.jsonl --on-error skip`")),
    # What `pack` is given in the place of text, named before anything is loaded for it.
    ("pack empty.jsonl -o o.pbin --tokenizer tokenizer.json", 6, ("empty.jsonl: the file is empty",)),
    ("pack empty.bin empty.dat -o o.pbin --tokenizer tokenizer.json", 6, ("empty.bin: the file is empty", "The other")),
    ("pack zip.jsonl -o o.pbin --tokenizer nothere.json", 4, ("zip.jsonl: no JSONL", "a zip archive", "Unpack it")),
    ("pack noise.bin -o o.pbin --tokenizer nothere.json", 4, ("noise.bin: no JSONL", "bytes of an unknown format")),
    ("pack zip.jsonl -o o.pbin --tokenizer nothere.json --input-format text", 4, ("no text", "a zip archive")),
    ("info zip.jsonl", 7, ("a zip archive", "Unpack it")),
    ("info noise.jsonl", 7, ("bytes of an unknown format", "Copy it again")),
    # One dataset where several were named.
    ("repair corpus.jsonl comma.jsonl", 2, ("Repair one dataset at a time",)),
    ("purge corpus.jsonl comma.jsonl -o o.jsonl", 2, ("a quoted pattern such as '{a,b}.jsonl'",)),
    ("mount tars two mixed", 2, ("penstock mount PATH MOUNTPOINT",)),
    ("stage corpus.jsonl comma.jsonl --hosts 1 --host 0", 2, ("a quoted pattern",)),
    ("prepare tars two", 2, ("one directory of tars or one JSONL",)),
    ("lineage corpus.jsonl comma.jsonl", 2, ("Give one file at a time",)),
    ("diff corpus.jsonl comma.jsonl bad.jsonl", 2, ("A and B are one dataset each: a directory, or a quoted pattern",)),
    # What was mistyped: near names alone are suggested.
    ("pakc corpus.jsonl", 2, ("No such command 'pakc'. Did you mean 'pack'?",)),
    ("xyzzy", 2, ("No such command 'xyzzy'.",)),
    ("modalities dta", 2, ("Did you mean 'data'?",)),
    ("head corpus.jsonl -n two", 2, ("'two' is not a whole number",)),
    ("head corpus.jsonl --colums id", 2, ("--columns",)),
    ("convert corpus.jsonl o --to mdss", 10, ("Did you mean 'mds'?",)),
    ("convert corpus.jsonl o --to parquet", 7, ("read-only", "mds")),
    ("filter corpus.jsonl -o o.jsonl --where 'txt == 1'", 10, ("one of id, text", "Did you mean 'text'?")),
    ("filter corpus.jsonl -o o.jsonl --where 'text ='", 10, ("text =",)),
    ("pack corpus.jsonl -o o.pbin --tokenizer gpt2", 9, ("Tokenizers aren't downloaded", "hf download gpt2")),
    ("pack corpus.jsonl -o o.xyz --tokenizer tokenizer.json", 10, ("slash",)),
    ("pack hollow -o o.pbin --tokenizer tokenizer.json", 9, ("no JSONL file",)),
    ("split corpus.jsonl -o o --ratio a,b", 10, ("8,1,1",)),
    ("shuffle corpus.jsonl -o corpus.jsonl --seed 1", 10, ("corpus.jsonl",)),
    ("shuffle pqs -o o.jsonl --seed 1 --part 0/2", 7, ("convert pqs pqs.jsonl",)),
    ("filter pqs -o o.parquet --where 'id == \"k1\"'", 7, ("--to",)),
    ("split pictures -o o --ratio 8,1,1", 7, ("convert pictures pictures.mds --to mds",)),
    ("merge corpus.jsonl c.pbin -o o.pbin", 10, ("can't be combined", "Convert or pack")),
    ("filter c.pbin -o o.pbin --where 'x == 1'", 10, ()),
    ("index corpus.jsonl --executor procesess", 10, ("Did you mean 'processes'?",)),
    ("explain corpus.jsonl --document nokey", 4, ("not a recipe", "`path: corpus.jsonl`")),
    ("plan mixed/mds", 4, ("not a recipe", "`path: mds`")),
    ("explain recipe.yaml --document nokey --global-batch 4", 9, ("no source in this run contains document",)),
    ("explain tokens.yaml --document nokey[3] --global-batch 4", 9, ("no source in this run contains document",)),
    ("explain recipe.yaml --step 0 --global-batch 4 --key k1", 2, ("These options need --show: leave out --key",)),
    ("head corpus.jsonl --index 20", 10, ("index out of range", "0 to 19")),
    ("head corpus.jsonl --index 1 --start 2", 2, ("leave out --start",)),
    ("head corpus.jsonl --key k99 --pictures", 9, ("no sample with the key 'k99'",)),
    ("head mixed/mds --key nokey", 9, ("no sample with the key 'nokey'", "--key-field")),
    ("head c.pbin --tokenizer org/model", 9, ("in the Hugging Face cache", "hf download org/model")),
    ("repair c.pbin --depth deep", 2, ("quick", "full")),
    ("convert comma.jsonl o --to csv", 10, ("sample 0: the column 'text' holds ','", "--to json-shards")),
    ("convert comma.jsonl o --to csv --dry-run", 10, ("sample 0: the column 'text' holds ','", "--to json-shards")),
    ("convert comma.jsonl o --to mds -O sizelimit=1", 10, ("unknown option sizelimit", "size_limit")),
    ("convert comma.jsonl o --to mds --dry-run --part 0/2", 10, ("a dry run always covers the whole job",)),
    ("merge mixed/mds -o o --no-copy --dry-run", 10, ("no_copy only writes an index", "dry_run")),
    ("filter corpus.jsonl -o hollow --where 'id == \"k1\"' --dry-run", 10, ("folder",)),
    ("filter corpus.jsonl -o c.pbin --where 'id == \"k1\"' --dry-run", 7, ("can't hold lines",)),
    ("pack corpus.jsonl -o c.pbin --tokenizer nothere.json --dry-run", 10, ("the output exists", "--overwrite")),
    ("pack - -o o.pbin --tokenizer nothere.json --dry-run", 10, ("standard input must be copied",)),
    ("verify c.pbin --part 1/4", 10, ("--work",)),
    ("status nothere", 9, ("Check the path",)),
    ("mount tars nothere", 9, ("Create it: mkdir",)),
    ("info nothere", 9, ("no such file or folder",)),
    # Options and arguments of another kind, order or unit.
    ("convert corpus.jsonl --to mds", 2, ("Missing argument 'TARGET'",)),
    ("index corpus.jsonl -o x.idx", 2, ("--index-path",)),
    ("repair corpus.jsonl --fix", 2, ("--write",)),
    ("filter corpus.jsonl -o o.jsonl --regex x", 2, ("--match",)),
    ("pack corpus.jsonl o.pbin --tokenizer t.json", 2, ("Missing option '-o'", "-o OUT")),
    ("modalities create_raw_index corpus.jsonl", 2, ("Did you mean 'data create_raw_index'?",)),
    ("head corpus.jsonl -n 5k", 2, ("'-n' / '--limit': '5k' is not a whole number. Write it out: 5000.",)),
    ("pack corpus.jsonl -o o/ --file-tokens 0 --tokenizer t.json", 2, ("0 is out of range, expected 1 or more",)),
    ("head corpus.jsonl --columns txt", 10, ("no sample has this field", "Did you mean 'text'?")),
    ("find corpus.jsonl k1", 10, ("--key", "--text", "--where")),
    ("filter corpus.jsonl -o o.jsonl --where \"id = 'k1'\"", 10, ("Use == to compare",)),
    ("filter corpus.jsonl -o o.jsonl --where 'id == k1'", 10, ("Put text in quotes",)),
    ("filter corpus.jsonl -o o.jsonl --indices corpus.jsonl", 10, ("not a list of indices", "one integer per line")),
    ("convert corpus.jsonl o --to mds --columns id=string,text=str", 10, ("unknown encoding", "Did you mean 'str'?")),
    ("shuffle corpus.jsonl -o s.pbin --seed 1", 7, ("can't hold lines", "penstock pack")),
    ("plan recipe.yaml --global-batch 8 --world 3", 10, ("8 on 3 ranks", "6 or 9")),
    ("explain recipe.yaml --step ten", 2, ("'--step': 'ten' is not a whole number",)),
    ("plan straem.yaml", 10, ("straem", "Did you mean 'stream'?")),
    ("prepare nothere.jsonl --split-ratio 8,1,1", 9, ("nothere.jsonl: no such file or folder",)),
    ("prepare nothere.yaml --split-ratio 8,1,1 --workers 2", 9, ("nothere.yaml: no such file or folder",)),
    ("prepare nothere --exact --split-ratio 8,1,1", 9, ("nothere: no such file or folder",)),
    ("prepare-media nothere --exact", 9, ("nothere: no such",)),
    ("prepare-media corpus.jsonl", 9, ("a file instead of a folder",)),
    ("demo corpus.jsonl", 10, ("a file, not a directory",)),
    ("index c.pbin", 7, ("no lines of JSON", "penstock info")),
    ("index table.csv", 7, ("a text table", "penstock convert table.csv")),
    ("info utf16.jsonl", 7, ("UTF-16", "iconv")),
    # Paths that lead nowhere.
    ("info corpus.json", 9, ("Did you mean 'corpus.jsonl'?",)),
    ("info 'nope*.jsonl'", 9, ("No file matches this pattern",)),
    ("plan 'corp*.jsonl'", 9, ("Files match this pattern, but a single path is needed",)),
    ("info '$DATA/corpus.jsonl'", 9, ("The shell didn't expand the variable",)),
    ("pack '~/corpus.jsonl' -o o.pbin --tokenizer t.json", 9, ("Shells don't expand ~",)),
    ("info 'C:\\data\\x.jsonl'", 9, ("a Windows path",)),
    ("info s3//bucket/x", 9, ("a scheme and ://",)),
    ("info ''", 9, ("The path is empty",)),
    (
        "pack corpus.jsonl -o o.pbin --tokenizer nothere/tokenizer.json",
        9,
        ("the tokenizer file doesn't exist", "Check the path"),
    ),
    # What is no JSONL is said before a tokenizer is loaded: the one named here does not exist.
    ("pack big.txt -o o.pbin --tokenizer nothere.json", 4, ("plain text", "--input-format text")),
    ("pack pretty.json -o o.pbin --tokenizer nothere.json", 4, ("one JSON document", "--input-format text")),
    ("pack tokenizer.json -o o.pbin --tokenizer nothere.json", 4, ("a tokenizer, not data", "--tokenizer")),
    ("pack in-a-line.json -o o.pbin --tokenizer nothere.json", 4, ("a tokenizer, not data", "--tokenizer")),
    ("info in-a-line.json", 7, ("a tokenizer, not data", "--tokenizer")),
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of what somebody has in the first hour."""
    root = tmp_path_factory.mktemp("first-hour")
    rows = [{"id": f"k{i}", "text": f"document {i}"} for i in range(20)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (root / "corpus.jsonl").write_text(lines)
    (root / "corpus.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (root / "indexed.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (root / "indexed.jsonl.idx").write_text("an index of another file")
    (root / "x.txt.gz").write_bytes(gzip.compress(b"plain words\n" * 9))
    (root / "big.txt").write_text("plain words\n" * 9000)
    (root / "pretty.json").write_text(json.dumps(rows, indent=1))
    (root / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": []}, indent=1))
    (root / "in-a-line.json").write_text(json.dumps({"version": "1.0", "added_tokens": []}))
    (root / "recipe.yaml").write_text("path: corpus.jsonl\n")
    (root / "tokens.yaml").write_text("kind: chunk\nlength: 1\nsource: {kind: open, path: c.pbin}\n")
    (root / "straem.yaml").write_text("penstock: 1\nstraem: {path: c.pbin}\n")
    (root / "utf16.jsonl").write_text(lines, encoding="utf-16")
    (root / "comma.jsonl").write_text('{"id": "k", "text": "a, b"}\n')
    (root / "bad.jsonl").write_text('{"a":1}\n{oops\n')
    (root / "table.csv").write_text("a,b\n1,2\n")
    for name in ("empty.bin", "empty.dat", "empty.jsonl"):
        (root / name).touch()
    (root / "zip.jsonl").write_bytes(b"PK\x03\x04\x14\0\0\0" + bytes(range(256)))
    for name in ("noise.bin", "noise.jsonl"):
        (root / name).write_bytes(np.random.default_rng(1).bytes(1 << 16))
    for name in ("hollow", "mixed/raw", "above/tars/.nv-meta"):
        (root / name).mkdir(parents=True)
    (root / "above/tars/.nv-meta/.info.json").write_text("{}")
    (root / "above/tars/a.tar").touch()
    (root / "mixed/notes.jsonl").write_text(lines)
    with ps.create(root / "mixed/mds", format="mds", columns={"id": "str", "text": "str"}) as writer:
        for row in rows:
            writer.write(row)
    for name in ("two", "pqs", "pictures"):
        (root / name).mkdir()
    for number in range(5):
        (root / f"pictures/{number}.jpg").write_bytes(b"a picture")
        (root / f"pictures/{number}.txt").write_text("its caption")
    with ps.create(root / "tars", format="webdataset", split="train") as writer:
        for number in range(4):
            writer.write({"__key__": f"{number}", "jpg" if number else "png": b"a picture", "txt": b"its caption"})
    (root / "two/a.jsonl").write_text(lines)
    (root / "two/b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    for name in ("a", "b"):
        parquet.write_table(pyarrow.Table.from_pylist(rows[:10]), root / f"pqs/{name}.parquet")
    with ps.create(root / "c.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
        writer.write({"tokens": np.array([1, 2, 0], np.uint16)})
    return root


@pytest.mark.parametrize(("line", "status", "words"), MISTAKES, ids=[line for line, _, _ in MISTAKES])
def test_a_mistake_is_told_in_a_line(
    home: Path,
    line: str,
    status: int,
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(home)
    before = sorted(os.listdir(home))
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(line))
    told = capsys.readouterr()
    said = " ".join(told.err.split())
    assert ended.value.code == status, said
    assert [word for word in words if word not in said] == [], said
    assert "; unmount with" not in said  # no word of success before a refusal
    assert len(said) <= MOST_CHARACTERS
    assert "Traceback" not in said
    assert status == 2 or said.endswith("]")  # the code that `penstock --errors` explains
    assert told.out == ""
    assert sorted(os.listdir(home)) == before


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("info corpus.jsonl.gz", ("20",)),
        ("info two", ("jsonl-files", "40")),
        ("info 'two/*.jsonl'", ("20",)),
        ("info pqs", ("parquet", "20")),
        ("info 'pqs/*.parquet'", ("parquet", "20")),
        ("info corpus.jsonl", ("id (100%), text (100%) of the first 20",)),
        ("info tars", ("txt (100%), jpg (75%), png (25%) of the first 4",)),
        (
            "info pictures",
            ("jpg (5), txt (5)", "samples by name  5: convert groups files by name"),
        ),
        ("stage corpus.jsonl.gz --hosts 1 --host 0", ("all data is local, so there is nothing to stage",)),
        ("stage '{corpus,comma}.jsonl' --hosts 1 --host 0", ("all data is local, so there is nothing to stage",)),
        ("convert pictures o --to mds --dry-run", ("would write o (mds): 5 samples",)),
        ("split two -o o --ratio 8,1,1 --dry-run", ("o/two_train.jsonl",)),
        ("split 'two/*.jsonl' -o o --ratio 8,1,1 --dry-run", ("o/two_train.jsonl",)),
        ("split corpus.jsonl.gz -o o --ratio 1,1 --dry-run", ("o/corpus_train.jsonl",)),
        ("filter pqs -o o.jsonl --where 'id == \"k1\"' --dry-run", ("would write o.jsonl: 2 lines",)),
        ("split 'pqs/*.parquet' -o o --ratio 8,1,1 --dry-run", ("o/pqs_train.jsonl",)),
        ("merge pqs/a.parquet corpus.jsonl -o o.jsonl --dry-run", ("would write o.jsonl: 30 lines",)),
        ("head mixed/mds --index 3", ('3: {"id": "k3"',)),
        ("head mixed/mds --start 18", ("18:", "19:")),
        ("head c.pbin --pictures", ("1 2 0",)),
        (
            "filter two -o o.jsonl --where 'id == \"k1\"' --dry-run",
            ("would write o.jsonl: 2 lines", "nothing was written"),
        ),
        ("convert pqs o --to mds --dry-run", ("would write o (mds): 20 samples",)),
        ("find pqs --key k1", ("2 found",)),
        ("explain recipe.yaml --step 0 --global-batch 2 --show --index 1", ('1: {"id": "k1"',)),
        ("repair c.pbin --depth full", ("nothing to repair at depth full",)),
        ("completion bash", ("penstock",)),
        ("doctor", ("settings file", "PENSTOCK_CACHE", "from the environment")),
    ],
)
def test_what_simply_works(
    home: Path, line: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    before = sorted(os.listdir(home))
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(line))
    told = capsys.readouterr()
    assert ended.value.code == 0, told.err
    assert [word for word in words if word not in told.out] == [], told.out
    assert sorted(os.listdir(home)) == before


@pytest.mark.parametrize(("sign", "told"), [("==", "no samples match"), ("!=", "all samples match")])
def test_a_filter_that_does_nothing_says_so(
    home: Path, sign: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["filter", str(home / "corpus.jsonl"), "-o", str(tmp_path / "o.jsonl"), "--where", f'id {sign} "none"'])
    assert ended.value.code == 0
    assert f"warning: {told}" in capsys.readouterr().err


def test_why_each_format_did_not_recognise_it_stands_in_the_traceback(home: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["info", str(home / "big.txt")])
    assert ended.value.code == 7
    with pytest.raises(ps.errors.Unsupported) as raised:
        main(["--debug", "info", str(home / "big.txt")])
    assert "parquet: it does not begin and end with PAR1" in "\n".join(raised.value.__notes__)


@pytest.mark.parametrize(
    ("line", "status", "expected"),
    [
        ("info nothere --json", 9, {"code": "not-found", "path": "nothere", "hint": "Check the path", "place": None}),
        ("index bad.jsonl --json", 6, {"code": "corrupt", "place": "byte 8"}),
        ("head corpus.jsonl -n two --json", 2, {"code": "usage", "hint": "penstock head --help"}),
        ("pakc --json", 2, {"code": "usage"}),
    ],
)
def test_an_error_is_one_json_document_too(
    home: Path,
    line: str,
    status: int,
    expected: dict[str, str | None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(home)
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(line))
    told = capsys.readouterr()
    assert ended.value.code == status
    error = json.loads(told.out)["error"]
    assert list(error) == ["code", "message", "path", "place", "found", "expected", "hint"]
    assert error | expected == error
    assert error["message"] in told.err


@pytest.mark.parametrize(
    "line",
    [
        "index corpus.jsonl",
        "info corpus.jsonl",
        "convert corpus.jsonl o --to mds --columns id=str,text=str",
        "filter corpus.jsonl -o o.jsonl --where 'id == \"k1\"'",
        "merge corpus.jsonl corpus.jsonl.gz -o o.jsonl",
        "pack corpus.jsonl -o o.pbin --tokenizer nothere.json",
    ],
)
def test_refused_rights_have_one_exit_status(
    home: Path, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    really = os.open

    def refuse(path: str, *arguments: int, **more: int) -> int:
        if os.path.basename(path) == "corpus.jsonl":
            raise PermissionError(13, "Permission denied", path)
        return really(path, *arguments, **more)

    monkeypatch.chdir(home)
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(SystemExit) as ended:
        main([*shlex.split(line), "--json"])
    told = capsys.readouterr()
    assert (ended.value.code, json.loads(told.out)["error"]["code"]) == (18, "system")
    assert "corpus.jsonl: Permission denied" in told.err
