"""`pack --fim-rate`: documents cut by character and rearranged, by a seed and their text alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tests.internals import main
from tests.prepare.conftest import EOS, TEXTS, stored_tokens, write_lines

import penstock as ps
from penstock.errors import ConfigError, PrepareError
from penstock.prepare import PackReport
from penstock.prepare.tokens.fill_in import FillIn, FillInOptions

Made = Callable[..., PackReport]
TOKENS = ("<fim_prefix>", "<fim_middle>", "<fim_suffix>")


def with_tokens(bpe2: Path, folder: Path, tokens: tuple[str, ...] = TOKENS, around: str = "") -> Path:
    """The golden tokenizer with these tokens more, and BOS around texts where one is named."""
    shutil.copytree(bpe2, folder, copy_function=shutil.copyfile)
    made = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.add_special_tokens([*tokens, *([around] if around else [])])
    if around:
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{around} $A", special_tokens=[(around, made.token_to_id(around))]
        )
    made.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def tokenizer(bpe2: Path, tmp_path: Path) -> Path:
    return with_tokens(bpe2, tmp_path / "tokenizer")


def put_back(folder: Path, ids: list[int]) -> tuple[str, str]:
    """The form of a document, and the text that it was."""
    known = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    pre, mid, suf = map(known.token_to_id, TOKENS)
    assert ids[-1] == known.token_to_id(EOS)
    ids = ids[:-1]

    def said(some: list[int]) -> str:
        return known.decode(some, skip_special_tokens=False)

    if pre not in ids:
        return "as it was", said(ids)
    assert (ids[0], ids.count(pre), ids.count(mid), ids.count(suf)) == (pre, 1, 1, 1)
    at, middle = ids.index(suf), ids.index(mid)
    prefix, suffix, rest = said(ids[1:at]), said(ids[at + 1 : middle]), said(ids[middle + 1 :])
    return ("SPM", rest + suffix) if at == 1 else ("PSM", prefix + rest + suffix)


def test_every_document_can_be_put_back(corpus: Path, made: Made, tokenizer: Path, tmp_path: Path) -> None:
    made(corpus, tokenizer=tokenizer, fim_rate=0.6, fim_seed=3)
    found = [put_back(tokenizer, ids) for ids in stored_tokens(tmp_path / "out.pbin")]
    assert [text for _, text in found] == TEXTS
    forms = [form for form, _ in found]
    assert 70 < 150 - forms.count("as it was") < 110
    assert min(forms.count("PSM"), forms.count("SPM")) > 25
    manifest = ps.open(tmp_path / "out.pbin").manifest  # type: ignore[attr-defined]
    assert {key: manifest.options[key] for key in ("fim-rate", "fim-spm-rate", "fim-seed")} == {
        "fim-rate": 0.6,
        "fim-spm-rate": 0.5,
        "fim-seed": 3,
    }
    assert ps.verify(tmp_path / "out.pbin", depth="full") == []


def test_cuts_fall_inside_of_words() -> None:
    how = FillIn(FillInOptions(1.0), 1, 2, 3, ((), ()))
    cut = [b"".join(text for _, text in how.parts_of(b"a" * 20 + bytes([n]))) for n in range(65, 90)]
    assert {len(one) for one in cut} == {21}
    lengths = {len(how.parts_of(b"abcdefgh" * 4 + bytes([n]))[0][1]) for n in range(65, 90)}
    assert len(lengths) > 10


def test_forms_and_cuts_of_a_seed_are_pinned() -> None:
    """Another version of them needs another name."""
    how = FillIn(FillInOptions(0.7, seed=5), 1, 2, 3, ((), ()))
    found = {text: how.parts_of(text.encode()) for text in PINNED}
    assert found == PINNED


PINNED: dict[str, list[tuple[tuple[int, ...], bytes]]] = {
    "日本語のテキスト": [((1,), b""), ((3,), b""), ((2,), "日本語のテキスト".encode())],
    "": [((), b"")],
    "def f(x): return x + 1": [((1,), b"def "), ((3,), b"n x + 1"), ((2,), b"f(x): retur")],
    "The quick brown fox.": [((), b"The quick brown fox.")],
    "a\nb": [((), b"a\nb")],
    "x": [((), b"x")],
    "for i in range(9):": [((), b"for i in range(9):")],
}


def test_same_bytes_whoever_works(corpus: Path, made: Made, tokenizer: Path, tmp_path: Path) -> None:
    options = {"tokenizer": tokenizer, "fim_rate": 0.5}
    made(corpus, tmp_path / "a.pbin", **options)
    made(corpus, tmp_path / "b.pbin", workers=2, task_bytes=700, **options)
    made(corpus, tmp_path / "c.pbin", engine="tokenizers", **options)
    for index in (1, 0):
        made(corpus, tmp_path / "d.pbin", part=(index, 2), task_bytes=700, **options)
    made(corpus, tmp_path / "d.pbin", finish=True, **options)
    assert len({(tmp_path / f"{name}.pbin").read_bytes() for name in "abcd"}) == 1
    half = tmp_path / "half.jsonl"
    half.write_text("".join(corpus.read_text().splitlines(keepends=True)[75:]))
    made(half, tmp_path / "e.pbin", **options)
    assert stored_tokens(tmp_path / "e.pbin") == stored_tokens(tmp_path / "a.pbin")[75:]


def test_a_killed_run_goes_on_and_another_rate_is_other_work(
    corpus: Path, made: Made, tokenizer: Path, tmp_path: Path
) -> None:
    options = {"tokenizer": tokenizer, "fim_rate": 0.5, "fim_tokens": TOKENS}
    made(corpus, tmp_path / "a.pbin", part=(0, 2), task_bytes=700, **options)
    with pytest.raises(ConfigError, match="--fim-rate"):
        made(corpus, tmp_path / "a.pbin", **{**options, "fim_rate": 0.4})
    report = made(corpus, tmp_path / "a.pbin", **options)
    assert report.reused_tasks > 0
    made(corpus, tmp_path / "b.pbin", **options)
    assert (tmp_path / "a.pbin").read_bytes() == (tmp_path / "b.pbin").read_bytes()


def test_what_a_tokenizer_puts_around_stands_around_the_document(bpe2: Path, made: Made, tmp_path: Path) -> None:
    folder = with_tokens(bpe2, tmp_path / "bos", around="<s>")
    bos = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id("<s>")
    lines = write_lines(tmp_path / "in.jsonl", ({"text": text} for text in TEXTS))
    made(lines, tokenizer=folder, fim_rate=1.0)
    for ids, text in zip(stored_tokens(tmp_path / "out.pbin"), TEXTS, strict=True):
        assert (ids[0], ids.count(bos)) == (bos, 1)
        assert put_back(folder, ids[1:])[1] == text
    for place, options in ((tmp_path / "plain.pbin", {}), (f"{tmp_path}/files/", {"file_tokens": 40})):
        made(lines, place, tokenizer=folder, **options)
        source = ps.open(place)
        assert source.manifest.options["bos_id"] == bos  # type: ignore[attr-defined]
        cut = ps.FillInTheMiddle(source, rate=1.0, prefix_id=1, middle_id=2, suffix_id=3, seed=0)  # type: ignore[arg-type]
        assert [one["tokens"][:2].tolist() for one in cut] == [[bos, 1]] * len(cut)


def test_rate_0_changes_nothing_and_empty_texts_are_left_out(made: Made, tokenizer: Path, tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "in.jsonl", ({"text": text} for text in ["a b", "", "c"]))
    made(lines, tmp_path / "a.pbin", tokenizer=tokenizer, on_error="skip")
    made(lines, tmp_path / "b.pbin", tokenizer=tokenizer, on_error="skip", fim_rate=0.0)
    assert (tmp_path / "a.pbin").read_bytes() == (tmp_path / "b.pbin").read_bytes()
    report = made(lines, tmp_path / "c.pbin", tokenizer=tokenizer, on_error="skip", fim_rate=1.0)
    assert (report.documents, report.num_dropped) == (2, 1)


@pytest.mark.parametrize("rate", [0.001, 1.0])
def test_a_text_that_holds_one_of_the_tokens_is_named(made: Made, tokenizer: Path, tmp_path: Path, rate: float) -> None:
    texts = ["a b", "x " * 400 + "<fim_suffix>" + " y" * 400, "c"]
    lines = write_lines(tmp_path / "in.jsonl", ({"text": text} for text in texts))
    with pytest.raises(PrepareError, match="line 2: the text contains a fill-in-the-middle token"):
        made(lines, tmp_path / "a.pbin", tokenizer=tokenizer, fim_rate=rate)
    report = made(lines, tmp_path / "b.pbin", tokenizer=tokenizer, on_error="skip", fim_rate=rate, fim_seed=7)
    assert (report.documents, report.num_dropped) == (2, 1)
    assert "fill-in-the-middle" in report.dropped[0].reason
    found = stored_tokens(tmp_path / "b.pbin")
    assert [put_back(tokenizer, ids)[1] for ids in found] == ["a b", "c"]


def test_what_can_not_be_is_refused(corpus: Path, made: Made, bpe2: Path, tokenizer: Path) -> None:
    for options, match in (
        ({"fim_rate": 1.5}, "fim_rate must be a fraction"),
        ({"fim_rate": 0.5, "fim_spm_rate": -1}, "fim_spm_rate must be a fraction"),
        ({"fim_seed": 1}, "fim_seed"),
        ({"fim_rate": 0.5, "fim_tokens": ["a", "b"]}, "fim_tokens needs three tokens"),
        ({"fim_rate": 0.5, "fim_tokens": ["<fim_prefix>", "<fim_middle>", "<fim_sufix>"]}, "<fim_suffix>"),
        ({"fim_rate": 0.5, "fim_tokens": ["<fim_prefix>", "<fim_middle>", EOS]}, "ends documents"),
        ({"fim_rate": 0.5, "tokenizer": bpe2}, "no fill-in-the-middle tokens"),
        ({"fim_rate": 0.5, "chat": True}, "conversations"),
    ):
        given: Any = {"tokenizer": tokenizer, **options}
        with pytest.raises(ConfigError, match=match):
            made(corpus, **given)


def test_by_the_command_line(corpus: Path, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.pbin"
    given = ["pack", str(corpus), "-o", str(out), "--tokenizer", str(tokenizer), "--executor", "inline", "--json"]
    with pytest.raises(SystemExit, match="0"):
        main([*given, "--fim-rate", "1", "--fim-seed", "2", "--fim-spm-rate", "1", "--fim-tokens", *TOKENS])
    assert json.loads(capsys.readouterr().out)["documents"] == 150
    assert {put_back(tokenizer, ids)[0] for ids in stored_tokens(out)} == {"SPM"}
