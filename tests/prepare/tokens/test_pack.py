"""`pack`: the same bytes as Modalities, whoever works and however it is cut; and every refusal."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.internals import GigatokenEngine, build_index, load_engine, replace
from tests.prepare.conftest import EOS, TEXTS, expected_tokens, names_in, stored_tokens, with_changes, write_lines
from tests.prepare.tokens.test_tokenizer import TEMPLATE

from penstock.errors import ConfigError, Corrupt, NotFound, PrepareError, Truncated, Unsupported
from penstock.formats import get_format, open_source
from penstock.prepare import Dropped, PackProgress, PackReport, pack
from penstock.testing.datasets import files_in
from penstock.types import Traits

Pack = Callable[..., PackReport]


def word4(golden: Path, folder: Path) -> Path:
    """The tokenizer of 65,805 words, made again from the words that texts hold."""
    words = json.loads((golden / "modalities" / "tokenizers" / "word4" / "words.json").read_text("utf-8"))
    names = ["<unk>", "<|eod|>", *("_" + base36(n) for n in range(65_598)), *words]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({name: n for n, name in enumerate(names)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<unk>", "<|eod|>"])
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def base36(number: int) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    return (base36(number // 36) if number >= 36 else "") + digits[number % 36]


class TestLikeModalities:
    """Golden files of the real tool."""

    @pytest.mark.parametrize("task_bytes", [None, 5000])
    @pytest.mark.parametrize(
        ("name", "engine"), [("bpe2", "gigatoken"), ("small1", "tokenizers"), ("word4", "tokenizers")]
    )
    def test_the_same_bytes(
        self, golden: Path, tmp_path: Path, made: Pack, name: str, engine: str, task_bytes: int | None
    ) -> None:
        folder = golden / "modalities"
        tokenizer = word4(golden, tmp_path / name) if name == "word4" else folder / "tokenizers" / name
        report = made(folder / "raw" / "docs.jsonl", tokenizer=tokenizer, eos=EOS, task_bytes=task_bytes)
        assert (tmp_path / "out.pbin").read_bytes() == (folder / "pbin" / f"docs.{name}.pbin").read_bytes()
        assert (report.documents, report.engine) == (200, engine)

    @pytest.mark.parametrize(("name", "dtype"), [("bpe2", "uint16"), ("small1", "uint16"), ("word4", "int32")])
    def test_megatron_chooses_by_its_own_rule(
        self, golden: Path, tmp_path: Path, made: Pack, name: str, dtype: str
    ) -> None:
        folder = golden / "modalities"
        tokenizer = word4(golden, tmp_path / name) if name == "word4" else folder / "tokenizers" / name
        made(folder / "raw" / "docs.jsonl", tmp_path / "out", to="megatron", tokenizer=tokenizer, eos=EOS)
        assert (tmp_path / "out.idx").read_bytes()[17] == {"uint16": 8, "int32": 4}[dtype]
        packed = folder / "pbin" / f"docs.{name}.pbin"
        assert stored_tokens(tmp_path / "out") == stored_tokens(packed)

    def test_lines_that_modalities_loses_everything_after(self, golden: Path, tmp_path: Path, made: Pack) -> None:
        raw = golden / "modalities" / "raw"
        with pytest.raises(PrepareError, match="line 5: the text produces no tokens"):
            made(raw / "docs_with_empty.jsonl")
        report = made(raw / "docs_with_empty.jsonl", on_error="skip")
        assert [one.line for one in report.dropped] == [5, 21, 22, 40]
        texts = [json.loads(line)["text"] for line in (raw / "docs_with_empty.jsonl").read_bytes().splitlines()]
        assert stored_tokens(tmp_path / "out.pbin") == expected_tokens(
            golden / "modalities/tokenizers/bpe2", filter(None, texts)
        )

    def test_a_tokenizer_that_adds_eos_leaves_no_document_empty(
        self, golden: Path, tmp_path: Path, made: Pack, bpe2: Path
    ) -> None:
        template = {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": EOS, "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {EOS: {"id": EOS, "ids": [0], "tokens": [EOS]}},
        }
        tokenizer = with_changes(bpe2, tmp_path / "autoeos", post_processor=template)
        report = made(golden / "modalities" / "raw" / "docs_with_empty.jsonl", tokenizer=tokenizer)
        assert report.documents == 40
        assert stored_tokens(tmp_path / "out.pbin")[4] == [0]


class TestDocuments:
    def test_eos_ends_every_document_once(self, tmp_path: Path, made: Pack) -> None:
        write_lines(tmp_path / "a.jsonl", ({"text": text} for text in ("a", "a" + EOS, EOS, EOS + "a", EOS * 2)))
        made(tmp_path / "a.jsonl")
        assert stored_tokens(tmp_path / "out.pbin") == [[67, 0], [67, 0], [0], [0, 67, 0], [0, 0]]

    def test_another_eos(self, tmp_path: Path, made: Pack) -> None:
        write_lines(tmp_path / "a.jsonl", [{"text": "a"}, {"text": EOS}])
        report = made(tmp_path / "a.jsonl", eos="^")
        assert stored_tokens(tmp_path / "out.pbin") == [[67, 3], [0, 3]]
        assert report.manifest.eos_id == 3

    @pytest.mark.parametrize("engine", ["gigatoken", "tokenizers"])
    @pytest.mark.parametrize(
        ("special_tokens", "tokens"), [("default", [[1, 67, 0], [1, 0]]), ("none", [[67, 0], [0]])]
    )
    def test_special_tokens(
        self, tmp_path: Path, bpe2: Path, made: Pack, engine: str, special_tokens: str, tokens: list[list[int]]
    ) -> None:
        write_lines(tmp_path / "a.jsonl", [{"text": "a"}, {"text": EOS if special_tokens == "none" else ""}])
        tokenizer = with_changes(bpe2, tmp_path / "t", post_processor=TEMPLATE)
        made(tmp_path / "a.jsonl", tokenizer=tokenizer, special_tokens=special_tokens, engine=engine)
        assert stored_tokens(tmp_path / "out.pbin") == tokens

    def test_fields(self, tmp_path: Path, made: Pack) -> None:
        write_lines(tmp_path / "a.jsonl", [{"meta": {"body": "a"}, "text": 5}])
        made(tmp_path / "a.jsonl", field="meta.body")
        assert stored_tokens(tmp_path / "out.pbin") == [[67, 0]]

    def test_line_ends(self, tmp_path: Path, made: Pack) -> None:
        (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text":"a"}\r\n{"text":"b"}\r\n\xef\xbb\xbf{"text":"c"}')
        made(tmp_path / "a.jsonl")
        assert stored_tokens(tmp_path / "out.pbin") == [[67, 0], [68, 0], [69, 0]]

    def test_what_is_told(self, tmp_path: Path, corpus: Path, bpe2: Path, made: Pack) -> None:
        seen: list[PackProgress] = []
        report = made(corpus, task_bytes=3000, progress=seen.append)
        assert stored_tokens(tmp_path / "out.pbin") == expected_tokens(bpe2, TEXTS)
        assert (report.documents, report.num_dropped, report.input_files) == (150, 0, 1)
        assert report.tokens == sum(map(len, stored_tokens(tmp_path / "out.pbin")))
        assert report.input_bytes == corpus.stat().st_size == seen[-1].input_bytes == seen[-1].total_bytes
        assert (seen[-1].documents, seen[-1].tokens, len(seen)) == (150, report.tokens, report.tasks)
        assert [one.input_bytes for one in seen] == sorted(one.input_bytes for one in seen)
        assert set(report.seconds) == {"start", "encode", "commit"}
        manifest = report.manifest
        assert (manifest.tokenizer, manifest.eos_id, manifest.num_samples) == ("bpe2", 0, 150)
        assert list(manifest.inputs) == ["corpus.jsonl"]
        assert manifest.options == {"field": "text", "eos": EOS, "special_tokens": "default", "token_bytes": 2}
        assert names_in(tmp_path) == {"corpus.jsonl", "out.pbin", "out.pbin.penstock"}


class TestInputs:
    def test_compressed_files_count_as_their_content(self, tmp_path: Path, corpus: Path, made: Pack) -> None:
        made(corpus, tmp_path / "plain.pbin")
        lines = corpus.read_bytes().splitlines(keepends=True)
        first, second = b"".join(lines[:60]), b"".join(lines[60:])
        folder = tmp_path / "packed"
        (folder / "b").mkdir(parents=True)
        (folder / "a.jsonl.gz").write_bytes(gzip.compress(first[:700]) + gzip.compress(first[700:]))
        (folder / "b" / "c.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(second))
        report = made(folder, task_bytes=1500)
        assert (tmp_path / "out.pbin").read_bytes() == (tmp_path / "plain.pbin").read_bytes()
        assert report.tasks > 5
        assert list(report.manifest.inputs) == ["a.jsonl.gz", "b/c.jsonl.zst"]

    def test_the_order_is_that_of_relative_paths(self, tmp_path: Path, made: Pack) -> None:
        for name, text in (("b", "b"), ("a/z", "a"), ("A", "c")):
            (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
            write_lines(tmp_path / "in" / f"{name}.jsonl", [{"text": text}])
        made([tmp_path / "in" / "b.jsonl", tmp_path / "in" / "a", tmp_path / "in" / "A.jsonl"])
        assert stored_tokens(tmp_path / "out.pbin") == [[69, 0], [67, 0], [68, 0]]

    def test_an_empty_file_among_others(self, tmp_path: Path, corpus: Path, made: Pack) -> None:
        (tmp_path / "a.jsonl").write_bytes(b"")
        (tmp_path / "z.jsonl.gz").write_bytes(gzip.compress(b""))
        assert made([corpus, tmp_path / "a.jsonl", tmp_path / "z.jsonl.gz"]).documents == 150

    def test_an_input_that_is_cut_off(self, tmp_path: Path, corpus: Path, made: Pack) -> None:
        (tmp_path / "z.jsonl.gz").write_bytes(gzip.compress(corpus.read_bytes())[:-20])
        with pytest.raises(Truncated, match="cut off"):
            made([corpus, tmp_path / "z.jsonl.gz"], oracle_bytes=0)

    def test_an_input_that_changes_meanwhile(
        self, tmp_path: Path, corpus: Path, made: Pack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def touch(progress: PackProgress) -> None:
            os.utime(corpus, ns=(1, os.stat(corpus).st_mtime_ns - 1))

        # A small one was read once, before this: what was read is packed.
        made(corpus, progress=touch)
        (tmp_path / "out.pbin").unlink()
        replace(monkeypatch, "bytes_held_by_pack", 0)
        with pytest.raises(PrepareError, match="the input changed while it was being read"):
            made(corpus, progress=touch)
        assert not (tmp_path / "out.pbin").exists()


class TestBadLines:
    LINES = (
        *(b'{"text": "a"}', b"", b'{"text": "b"', b'{"other": 1}', b'{"text": null}', b'{"text": 7}', b'{"text": ""}'),
        *(b'{"text": "\\ud800"}', b'{"text": "\xff"}', b'{"text": "c"}'),
    )
    REASONS = (
        "a blank line",
        "not JSON",
        "no field",
        "is null",
        "is a number",
        "no token",
        "lone surrogate",
        "not UTF-8",
    )

    @pytest.fixture
    def bad(self, tmp_path: Path, corpus: Path) -> Path:
        """Some good lines, then bad ones."""
        path = tmp_path / "bad.jsonl"
        path.write_bytes(corpus.read_bytes() + b"\n".join(self.LINES) + b"\n")
        return path

    @pytest.mark.parametrize("task_bytes", [None, 100, 3000])
    def test_skipped_ones_are_listed(self, tmp_path: Path, bad: Path, made: Pack, task_bytes: int | None) -> None:
        report = made(bad, on_error="skip", task_bytes=task_bytes)
        assert [(one.file, one.line) for one in report.dropped] == [("bad.jsonl", 150 + n) for n in range(2, 10)]
        assert all(reason in one.reason for reason, one in zip(self.REASONS, report.dropped, strict=True))
        assert (report.documents, report.num_dropped) == (152, 8)
        assert stored_tokens(tmp_path / "out.pbin")[150:] == [[67, 0], [69, 0]]

    @pytest.mark.parametrize("task_bytes", [None, 100, 3000])
    def test_the_first_one_stops_the_work(self, tmp_path: Path, bad: Path, made: Pack, task_bytes: int | None) -> None:
        with pytest.raises(PrepareError, match="line 152: a blank line at byte") as error:
            made(bad, task_bytes=task_bytes)
        assert error.value.path == str(bad)
        assert bad.read_bytes()[error.value.offset_bytes :].startswith(b'\n{"text": "b"')
        assert not (tmp_path / "out.pbin").exists()

    def test_lines_of_compressed_files_are_counted_too(self, tmp_path: Path, bad: Path, made: Pack) -> None:
        (tmp_path / "bad.jsonl.gz").write_bytes(gzip.compress(bad.read_bytes()))
        report = made(tmp_path / "bad.jsonl.gz", on_error="skip", task_bytes=1000)
        assert [one.line for one in report.dropped] == [150 + n for n in range(2, 10)]
        with pytest.raises(PrepareError, match="line 152: a blank line"):
            made(tmp_path / "bad.jsonl.gz", task_bytes=1000, overwrite=True)

    def test_a_hundred_are_listed_and_all_are_counted(self, tmp_path: Path, made: Pack) -> None:
        (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n' + b"x\n" * 250)
        report = made(tmp_path / "a.jsonl", on_error="skip", task_bytes=40)
        assert (len(report.dropped), report.num_dropped) == (100, 250)
        assert report.dropped[-1] == Dropped("a.jsonl", 101, "not JSON: Expecting value, character 1 of the line")

    @pytest.mark.parametrize("content", [b"", b"\n\n", b'{"text": ""}\n'])
    def test_no_document_at_all(self, tmp_path: Path, made: Pack, content: bytes) -> None:
        (tmp_path / "a.jsonl").write_bytes(content)
        with pytest.raises(PrepareError, match="the inputs contain no documents"):
            made(tmp_path / "a.jsonl", on_error="skip")
        assert names_in(tmp_path) == {"a.jsonl"}


class TestTheSameBytes:
    @pytest.mark.parametrize("workers", [1, 3])
    def test_in_processes(self, tmp_path: Path, corpus: Path, made: Pack, workers: int) -> None:
        made(corpus, tmp_path / "inline.pbin")
        made(corpus, executor="processes", workers=workers, task_bytes=1000)
        assert (tmp_path / "out.pbin").read_bytes() == (tmp_path / "inline.pbin").read_bytes()
        side = "penstock"
        assert (tmp_path / f"out.pbin.{side}").read_bytes() == (tmp_path / f"inline.pbin.{side}").read_bytes()

    @settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        texts=st.lists(st.text(max_size=60), max_size=25),
        task_bytes=st.integers(1, 900),
        end=st.booleans(),
        packed=st.sampled_from(["", ".gz", ".zst"]),
    )
    def test_however_it_is_cut(
        self, tmp_path: Path, bpe2: Path, texts: list[str], task_bytes: int, end: bool, packed: str
    ) -> None:
        folder = tmp_path / "case"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        lines = [json.dumps({"text": text}, ensure_ascii=len(text) % 2 == 0) for text in ["first", *texts]]
        data = ("\n".join(lines) + "\n" * end).encode()
        path = folder / f"a.jsonl{packed}"
        path.write_bytes({"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}[packed](data))
        report = pack(
            path,
            folder / "o.pbin",
            tokenizer=bpe2,
            executor="inline",
            task_bytes=task_bytes,
            on_error="skip",
            oracle_bytes=100,
        )
        good = [text for text in ["first", *texts] if text]
        assert stored_tokens(folder / "o.pbin") == expected_tokens(bpe2, good)
        assert report.num_dropped == len(texts) + 1 - len(good)


class ByDocument:
    """A format of tokens whose writers take no parts from files, as one in a package of its own may be."""

    name = "pbin"
    traits = Traits(write=True, tokens=True, suffixes=(".pbin",))

    def create(self, store: Any, path: str, options: Any, *, overwrite: bool) -> Any:
        writer = get_format("pbin").create(store, path, options, overwrite=overwrite)
        plain: Any = type("Plain", (), {"write_part": None, "__getattr__": lambda _, name: getattr(writer, name)})
        plain.__enter__, plain.__exit__ = (lambda self: self), (lambda _, *error: writer.__exit__(*error))
        return plain()


def test_a_writer_that_takes_documents_alone(
    tmp_path: Path, corpus: Path, made: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(corpus, tmp_path / "plain.pbin")
    known = {"pbin": ByDocument()}
    replace(monkeypatch, "format_of_packed_files", lambda name: known.get(name) or get_format(name))
    made(corpus, tmp_path / "out.pbin")
    assert (tmp_path / "out.pbin").read_bytes() == (tmp_path / "plain.pbin").read_bytes()


class TestRefusals:
    def test_an_output_that_exists(self, tmp_path: Path, corpus: Path, made: Pack) -> None:
        made(corpus)
        before = (tmp_path / "out.pbin").read_bytes()
        with pytest.raises(ConfigError, match="the output exists"):
            made(corpus, eos="^")
        assert (tmp_path / "out.pbin").read_bytes() == before
        made(corpus, eos="^", overwrite=True)
        assert (tmp_path / "out.pbin").read_bytes() != before
        assert open_source(tmp_path / "out.pbin").eos_id == 3

    @pytest.mark.parametrize(
        ("options", "error", "words"),
        [
            ({"to": "csvx"}, ConfigError, "unknown format"),
            (
                {"to": "jsonl"},
                ConfigError,
                "not a format for packed tokens.*flat-tokens . mds . megatron . pbin",
            ),
            ({"to": "webdataset"}, ConfigError, "not a format for packed tokens"),
            ({"to": "parquet"}, Unsupported, "read-only"),
            ({"output": "out.xyz"}, ConfigError, "the format isn't clear from the name"),
            ({"output": "folder.pbin"}, ConfigError, "the output"),
            ({"output": "corpus.jsonl", "to": "pbin", "overwrite": True}, ConfigError, "would replace an input"),
            ({"tokenizer": "missing.json"}, NotFound, "no such file"),
            ({"tokenizer": "corpus.jsonl"}, Corrupt, "not a valid tokenizer"),
            ({"eos": "<|nope|>"}, ConfigError, "not in the vocabulary"),
            ({"field": ".text"}, ConfigError, "not a field name"),
            ({"special_tokens": "all"}, ConfigError, "--special-tokens"),
            ({"on_error": "ignore"}, ConfigError, "--on-error"),
            ({"engine": "magic"}, ConfigError, "--engine"),
            ({"executor": "rays"}, ConfigError, "unknown executor"),
            ({"workers": 0, "executor": "processes"}, ConfigError, "at least one worker is needed"),
            ({"task_bytes": 0}, ConfigError, "task_bytes must be positive"),
            ({"inputs": "missing.jsonl"}, NotFound, "no such file"),
            ({"inputs": "folder.pbin"}, NotFound, "no JSONL file"),
        ],
    )
    def test_what_leaves_nothing(
        self, tmp_path: Path, corpus: Path, made: Pack, options: dict[str, Any], error: type[Exception], words: str
    ) -> None:
        (tmp_path / "folder.pbin").mkdir()
        before = corpus.read_bytes()
        inputs = tmp_path / options.pop("inputs", "corpus.jsonl")
        output = tmp_path / options.pop("output", "out.pbin")
        if "tokenizer" in options:
            options["tokenizer"] = tmp_path / options["tokenizer"]
        with pytest.raises(error, match=words):
            made(inputs, output, **options)
        assert names_in(tmp_path) == {"corpus.jsonl", "folder.pbin"}
        assert corpus.read_bytes() == before

    @pytest.mark.parametrize(
        ("output", "to"),
        [
            *((name, to) for name in ("tok/tokenizer.json", "link.json", "second.json") for to in ("pbin", "mds")),
            *((name, to) for name in ("tok", ".") for to in ("flat-tokens", "mds")),
            ("words", "megatron"),
        ],
    )
    @pytest.mark.parametrize("named", ["tok", "tok/tokenizer.json"])
    def test_the_tokenizer_is_an_input(
        self, tmp_path: Path, bpe2: Path, corpus: Path, made: Pack, named: str, output: str, to: str
    ) -> None:
        """Its file, other names of it, its folder, and what holds that: none is replaced."""
        root = tmp_path / "in"
        shutil.copytree(bpe2, root / "tok")
        (root / "link.json").symlink_to("tok/tokenizer.json")
        for name in ("second.json", "words.bin"):
            os.link(root / "tok" / "tokenizer.json", root / name)
        before = files_in(root)
        with pytest.raises(ConfigError, match=r"would replace an input|contains an input"):
            made(corpus, root / output, to=to, tokenizer=root / named, overwrite=True)
        assert files_in(root) == before

    def test_an_output_in_the_tokenizers_folder_is_no_file_of_it(
        self, tmp_path: Path, bpe2: Path, corpus: Path, made: Pack
    ) -> None:
        root = tmp_path / "tok"
        shutil.copytree(bpe2, root)
        made(corpus, root / "out.pbin", tokenizer=root)
        made(corpus, root / "out.pbin", tokenizer=root, overwrite=True)
        for part in (1, 0, 1):
            made(corpus, f"{root}/files/", tokenizer=root, part=(part, 2))
        made(corpus, f"{root}/files/", tokenizer=root, finish=True)
        assert len(open_source(root / "files")) == len(open_source(root / "out.pbin"))

    def test_a_refused_run_leaves_no_new_folder(self, tmp_path: Path, made: Pack) -> None:
        (tmp_path / "a.jsonl").write_bytes(b"x")
        with pytest.raises(PrepareError, match="line 1: not JSON"):
            made(tmp_path / "a.jsonl", tmp_path / "new" / "deep" / "out.pbin")
        assert names_in(tmp_path) == {"a.jsonl"}

    def test_a_folder_without_rights(
        self, tmp_path: Path, corpus: Path, made: Pack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(path: Any, *args: Any, **kwargs: Any) -> None:
            raise PermissionError(13, "Permission denied", path)

        monkeypatch.setattr(os, "makedirs", refuse)
        with pytest.raises(PermissionError, match="Permission denied"):
            made(corpus, tmp_path / "no" / "out.pbin")

    def test_gigatoken_fails_in_the_middle(
        self, tmp_path: Path, corpus: Path, made: Pack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # It is confirmed at first, and panics at its third block.

        right = GigatokenEngine.encode
        calls: list[int] = []

        def encode(self: Any, texts: Any) -> Any:
            calls.append(1)
            if len(calls) == 4:
                raise BaseException("a panic")
            return right(self, texts)

        load_engine.cache_clear()
        replace(monkeypatch, "gigatoken_engine_encode", encode)
        with pytest.raises(PrepareError, match="gigatoken failed: a panic"):
            made(corpus, task_bytes=3000)
        assert not (tmp_path / "out.pbin").exists()


@pytest.mark.parametrize("many", [False, True])
def test_an_index_that_does_not_fit_is_refused_though_it_is_not_read(golden: Path, tmp_path: Path, many: bool) -> None:
    """As of every verb that reads it: the file or the index is not what it was."""
    tokenizer = golden / "modalities" / "tokenizers" / "bpe2"
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    paths = [write_lines(inputs / f"{name}.jsonl", ({"text": text} for text in TEXTS)) for name in ("a", "b")]
    for path in paths:
        build_index(path)
    given, index_path = inputs if many else paths[1], paths[1].with_suffix(".idx")
    pack(given, tmp_path / "before.pbin", tokenizer=tokenizer, executor="inline")
    paths[1].write_text('{"text": "a"}\n')
    with pytest.raises(Corrupt, match="index") as caught:
        pack(given, tmp_path / "out.pbin", tokenizer=tokenizer, executor="inline")
    assert str(paths[1]) in str(caught.value)
    assert str(index_path) in str(caught.value)
    assert not list(tmp_path.glob("out*"))
    index_path.write_bytes(b"MMIDIDX\0\0")  # Megatron-LM's, of a pair that was packed beside its lines
    pack(given, tmp_path / "out.pbin", tokenizer=tokenizer, executor="inline")
