"""Token files of other tools, in a folder, by a pattern or in a list, are one source; each is counted once a host."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.internals import current, main, place_of, put, replace

import penstock as ps
from penstock.errors import ConfigError, Corrupt, NotFound, PrepareError, TooLarge, Unsupported
from penstock.testing import TokenSourceLaws
from penstock.testing.datasets import files_in
from penstock.testing.token_files import write_token_files
from penstock.types import Sample

EOS = 7
FILES = [[[300, 2, EOS], [EOS]], [[9, EOS]], [[5, 0, 1, 4, EOS]], [[1, EOS], [2, 3, EOS]]]
NAMES = ["a", "b/c", "b/d", "e"]
DOCUMENTS = list(chain(*FILES))
SUFFIX = {"pbin": ".pbin", "megatron": ".bin", "flat-tokens": ".zarr"}


def write(folder: Path, format: str = "pbin", names: Sequence[str] = NAMES, files: Any = FILES, **options: Any) -> Path:
    """Files of one writer each, without anything of ours beside them."""
    for name, documents in zip(names, files, strict=True):
        path = folder / (name + ("" if format == "megatron" else SUFFIX[format]))
        path.parent.mkdir(parents=True, exist_ok=True)
        given = {} if format == "flat-tokens" else {"token_bytes": 2}
        with ps.create(path, format=format, **given, **options) as writer:
            writer.write_batch({"tokens": [np.array(one, np.uint32) for one in documents]})
    for side in folder.rglob("*.penstock"):
        side.unlink()
    return folder


def documents(source: Any) -> list[list[int]]:
    return [sample["tokens"].tolist() for sample in source]


class TestPbin(TokenSourceLaws):
    format: ClassVar = "pbin"
    dtype: ClassVar = np.uint16

    @pytest.fixture
    def source(self, tmp_path: Path) -> Any:
        return ps.open(write(tmp_path / "data", self.format))

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return [{"tokens": np.array(document, self.dtype)} for document in DOCUMENTS]

    def test_empty_batch(self, source: Any) -> None:
        assert source.get_batch(np.empty(0, np.int64)) == {"tokens": []}


class TestMegatron(TestPbin):
    format: ClassVar = "megatron"


class TestFlatTokens(TestPbin):
    format: ClassVar = "flat-tokens"
    dtype: ClassVar = np.uint32


@pytest.mark.parametrize("format", SUFFIX)
def test_a_folder_a_pattern_and_a_list(tmp_path: Path, format: str) -> None:
    folder = write(tmp_path / "data", format)
    before = files_in(folder)
    whole: Any = ps.open(folder)
    assert documents(whole) == DOCUMENTS
    assert whole.details() == {"files": 4, "format of the files": format}
    assert documents(ps.open(f"{folder}/**/*{SUFFIX[format]}")) == DOCUMENTS
    some: Any = ps.open([folder / f"e{SUFFIX[format]}", folder / "b"])
    assert documents(some) == [*FILES[1], *FILES[2], *FILES[3]]
    for source in (whole, some):
        again = pickle.loads(pickle.dumps(source))
        assert (again.fingerprint, documents(again)) == (source.fingerprint, documents(source))
        assert documents(ps.open_recipe(source.recipe())) == documents(source)
    assert whole.fingerprint == ps.open(write(tmp_path / "copy", format)).fingerprint != some.fingerprint
    assert files_in(folder) == before


def test_windows_are_those_of_one_file(tmp_path: Path) -> None:
    folder = write(tmp_path / "data")
    one = write(tmp_path / "one", names=["x"], files=[DOCUMENTS]) / "x.pbin"
    sources = [ps.open(path, eos_id=EOS) for path in (folder, one)]
    batches = [ps.Chunk(3, labels="shift")(source).get_batch([2, 0, 1]) for source in sources]  # type: ignore[arg-type]
    for name, column in batches[0].items():
        assert all(np.array_equal(*pair) for pair in zip(column, batches[1][name], strict=True))


def test_two_outputs_of_ours_in_a_list(tmp_path: Path) -> None:
    first = write_token_files(tmp_path / "a", FILES[2:], options={"eos_id": EOS})
    second = write_token_files(tmp_path / "b", FILES, options={"eos_id": EOS})
    stray = next(first.glob("part-00001-*.pbin"))
    (first / stray.name.replace("00001", "00007")).write_bytes(stray.read_bytes())  # the index alone decides
    assert documents(ps.open([first, second])) == [*chain(*FILES[2:]), *DOCUMENTS]
    with pytest.raises(ConfigError, match=r"contains other datasets.*as a list"):
        ps.open(tmp_path, format="token-files")
    with pytest.raises(ConfigError, match=r"index\.json does not list this token file"):
        ps.open(f"{first}/*.pbin")
    (first / "index.json").unlink()
    for given in (first, f"{first}/*.pbin", [first, second], sorted(first.glob("*.pbin"))):
        with pytest.raises(PrepareError, match=r"unfinished.*penstock status"):
            ps.open(given)


def test_what_is_refused_by_name(tmp_path: Path) -> None:
    folder = write(write(tmp_path / "data"), "megatron", ["m"], [[[1]]])
    with pytest.raises(ConfigError, match=r"several formats: found megatron \(.*m\.bin\), pbin \(.*a\.pbin\)"):
        ps.open(folder)
    (folder / "m.bin").unlink()
    with pytest.raises(NotFound, match=r"an index without its tokens"):
        ps.open(folder)
    (folder / "m.idx").write_bytes(b"\x80\x04]\x94.")  # that of a JSONL
    assert documents(ps.open(folder)) == DOCUMENTS
    (folder / "text.jsonl").write_text("{}\n")
    with pytest.raises(Unsupported, match=r"token files and other data \(text\.jsonl\).*\*\*/\*\.pbin"):
        ps.open(folder)
    assert documents(ps.open(f"{folder}/**/*.pbin")) == DOCUMENTS
    with pytest.raises(ConfigError, match="listed twice"):
        ps.open([folder / "e.pbin", f"{folder}/*.pbin"])
    with pytest.raises(ConfigError, match="split needs"):
        ps.open(f"{folder}/**/*.pbin", split="train")
    with pytest.raises(NotFound):
        ps.open([folder / "e.pbin", folder / "no.pbin"])
    with pytest.raises(ConfigError, match=r"JSONL and token files can't be combined into one dataset"):
        ps.open([folder / "e.pbin", folder / "text.jsonl"])
    other = write(tmp_path / "wide", names=["z"], files=[[[1]]])
    with ps.create(other / "z4.pbin", format="pbin", token_bytes=4) as writer:
        writer.write({"tokens": np.array([1], np.uint32)})
    with pytest.raises(Corrupt, match=r"z4\.pbin: .*different token widths"):
        documents(ps.open(other))


def test_vocabulary(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with ps.create(folder / "a.pbin", format="pbin", token_bytes=2) as writer:
        writer.write({"tokens": np.array([5, 300], np.uint32)})
    source: Any = ps.open([folder / "a.pbin"])
    assert source.max_token_id == 300
    with pytest.raises(TooLarge, match=r"a\.pbin: .*found 300, expected 0 to 299"):
        ps.open([folder], vocab_size=300)
    source = ps.open(write(tmp_path / "bare"))
    assert source.max_token_id is None


def test_links_out_of_the_folder(tmp_path: Path) -> None:
    folder = write(tmp_path / "data")
    outside = write(tmp_path / "outside", names=["o"], files=[[[6]]])
    (folder / "z.pbin").symlink_to(outside / "o.pbin")
    with pytest.raises(ps.errors.UnsafeData):
        documents(ps.open(folder))
    assert documents(ps.open(folder, follow_links=True)) == [*DOCUMENTS, [6]]


def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are opened as sources."""
    opened: list[str] = []
    right = current("format_of_found_files")

    class Looking:
        def __init__(self, format: str) -> None:
            self.kind = right(format)

        def open(self, store: Any, path: str, options: Any) -> Any:
            opened.append(os.path.basename(path))
            return self.kind.open(store, path, options)

    replace(monkeypatch, "format_of_found_files", Looking)
    return opened


def test_counted_once_a_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "few_found_files", 1)
    folder = write(tmp_path / "data")
    opened = looks(monkeypatch)
    first: Any = ps.open(folder)
    assert opened == []  # opening lists names, and opens none
    assert (first.num_tokens, len(first)) == (16, 6)
    assert len(opened) == 8
    second: Any = ps.open(folder)
    assert (second.num_tokens, len(second), documents(second)) == (16, 6, DOCUMENTS)
    assert len(opened) == 8
    (folder / "a.pbin").unlink()
    write(folder, names=["a"], files=[[[1, 2, 3]]])
    assert documents(ps.open(folder))[0] == [1, 2, 3]  # a file that changed is counted anew
    assert len(opened) == 16


@pytest.mark.parametrize("count", [20, 200])
def test_names_are_listed_and_no_file_is_touched(tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = (write(tmp_path / "one", names=["x"], files=[[[1, EOS]]]) / "x.pbin").read_bytes()
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:05d}.pbin").write_bytes(data)
    calls: list[str] = []

    def counted(name: str) -> None:
        right = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given, **more: calls.append(str(given[0])) or right(*given, **more))

    for name in ("open", "stat", "lstat"):
        counted(name)
    source: Any = ps.open(folder)
    assert [one for one in calls if ".pbin" in one] == []
    assert (len(source), source.num_tokens) == (count, 2 * count)
    source.files.most = 5
    assert source.gather(np.arange(0, 2 * count, 2), 1)[:, 0].tolist() == [1] * count
    assert len(source.files) == 5


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


def test_every_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, one = write(tmp_path / "data"), tmp_path / "one.pbin"
    assert run("convert", folder, one, "--token-bytes", 2) == 0
    assert documents(ps.open(one)) == DOCUMENTS
    for words in (
        ("merge", folder, folder),
        ("shuffle", folder, "--seed", 3),
        ("filter", folder, "--min-tokens", 2),
        ("split", folder, "--parts", 2, "--only", 1),
    ):
        made, same = tmp_path / f"{words[0]}.pbin", tmp_path / f"{words[0]}-one.pbin"
        assert run(*words, "-o", made) == 0
        assert run(*(one if word is folder else word for word in words), "-o", same) == 0
        assert made.read_bytes() == same.read_bytes()
    assert run("split", folder, "-o", tmp_path / "parts", "--ratio", "3,2", "--to", "pbin") == 0
    assert run("diff", folder, one) == 0
    capsys.readouterr()
    assert run("info", f"{folder}/**/*.pbin", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["format"], told["samples"], told["tokens"]) == ("token-files", 6, 16)
    assert told["size_bytes"] == sum(path.stat().st_size for path in folder.rglob("*.pbin"))
    for words in (("head",), ("energon", "preview"), ("energon", "lint"), ("verify",)):
        assert run(*words, folder) == 0
    assert run("verify", folder, "--write-manifest") == 0
    assert sorted(path.name for path in folder.rglob("*.penstock")) == [f"{name}.pbin.penstock" for name in "acde"]
    (folder / "b" / "c.pbin").write_bytes((folder / "b" / "c.pbin").read_bytes()[:-1])
    assert run("verify", folder) == 1
    assert "c.pbin" in capsys.readouterr().out
    refused = run("convert", one, folder, "--to", "flat-tokens", "--overwrite")
    assert refused != 0
    assert (folder / "a.pbin").exists()


@pytest.mark.parametrize("format", SUFFIX)
def test_a_pattern_and_a_list_are_checked(tmp_path: Path, format: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder, end = write(tmp_path / "data", format), SUFFIX[format]
    many = [folder / f"e{end}", *(folder / f"b/{name}{end}" for name in "cd")]
    for given in ([f"{folder}/**/*{end}"], many, [folder / f"a{end}", f"{folder}/b/*{end}"]):
        for depth in ("quick", "full"):
            assert run("verify", *given, "--depth", depth) == 0
    assert run("report", *many, "-o", tmp_path / "r.html") == 0
    damaged = next(path for path in (folder / "b").rglob("*") if path.is_file() and path.suffix in (end, ""))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    capsys.readouterr()
    assert run("verify", *many, "--depth", "full") == 1
    assert "/b/" in capsys.readouterr().out


def test_so_many_files_that_no_path_holds_their_names(tmp_path: Path) -> None:
    names = [f"{number:0150}" for number in range(40)]
    folder = write(tmp_path / "data", names=names, files=[[[EOS]]] * 40)
    assert run("verify", *(f"{folder}/{name}.pbin" for name in names)) == 0


def test_in_a_bucket(tmp_path: Path, s3_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    s3_bucket = f"s3://bucket/{tmp_path.name}"
    for format, suffix in SUFFIX.items():
        folder = write(tmp_path / format, format)
        for path in folder.rglob("*"):
            if path.is_file():
                target = place_of(f"{s3_bucket}/{format}/{path.relative_to(folder)}")
                put(target.store, target.path, path.read_bytes())
        source: Any = ps.open(f"{s3_bucket}/{format}")
        assert documents(source) == DOCUMENTS
        assert source.fingerprint == ps.open(folder).fingerprint
        assert documents(ps.open(f"{s3_bucket}/{format}/**{suffix}")) == DOCUMENTS
        assert documents(ps.open([f"{s3_bucket}/{format}/b"])) == [*FILES[1], *FILES[2]]
