"""`find`: by key, text and expression, held against brute force, in several formats."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.internals import replace
from tests.look.datasets import MAKERS, tars

import penstock as ps
from penstock.errors import ConfigError, NotFound, PrepareError
from penstock.testing import FileServer, KeyedSource, MemorySource

TOKENIZER = Path(__file__).parent.parent / "golden" / "modalities" / "tokenizers" / "bpe2"
TEXTS = ['say "hello"\\/', "gr\u00fc\u00dfe\n", "\u65e5\u672c \U0001f600", "", "hello hello", "C:\\u0041"]
ROWS: list[dict[str, Any]] = [
    {"id": 100 + n, "text": TEXTS[n % len(TEXTS)], "meta": {"lang": "de" if n % 3 else "en", "n": n}} for n in range(17)
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("made")
    return {name: make(ROWS, folder / name) for name, make in MAKERS.items()}


@pytest.fixture(params=list(MAKERS))
def dataset(request: pytest.FixtureRequest, made: dict[str, Path]) -> Path:
    return made[request.param]


def indices(report: Any) -> list[int]:
    return [one.index for one in report.found]


@pytest.mark.parametrize("text", ["hello", '"', "\\", "\\u", "/", "\u00fc", "\n", "\U0001f600", "de", "zzz", "A"])
def test_a_text_is_found_where_it_stands(dataset: Path, text: str) -> None:
    expected = [n for n, row in enumerate(ROWS) if text in row["text"] or text in row["meta"]["lang"]]
    report = ps.find(dataset, text=text)
    assert (indices(report), report.looked_at, report.of) == (expected, len(ROWS), len(ROWS))


def test_keys_and_expressions(dataset: Path) -> None:
    assert indices(ps.find(dataset, key="103")) == [3]
    assert indices(ps.find(dataset, key="7", key_field="meta.n")) == [7]
    assert indices(ps.find(dataset, key="nobody")) == []
    found = ps.find(dataset, where="meta.lang == 'en' and meta.n > 3")
    assert [(one.index, one.key) for one in found.found] == [(n, str(100 + n)) for n in (6, 9, 12, 15)]
    few = ps.find(dataset, where="meta.lang == 'en'", limit=2)
    assert (indices(few), few.looked_at) == ([0, 3], 4), "nothing behind the last one is counted"


@settings(max_examples=40)
@given(
    rows=st.lists(st.fixed_dictionaries({"text": st.text('ab\\u/"\n\u00fc', max_size=6)}), min_size=1, max_size=12),
    text=st.text('ab\\u/"\n\u00fc', min_size=1, max_size=3),
    is_ascii=st.booleans(),
)
def test_lines_against_brute_force(
    rows: list[dict[str, str]], text: str, is_ascii: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=is_ascii).replace("/", "\\/") + "\n" for row in rows))
    assert indices(ps.find(path, text=text)) == [n for n, row in enumerate(rows) if text in row["text"]]


def test_places_are_those_of_the_bytes(made: dict[str, Path]) -> None:
    [one] = ps.find(made["a.jsonl"], key="103").found
    start, _, stop = (one.place or "").removeprefix("bytes ").partition("-")
    assert json.loads(Path(one.path).read_bytes()[int(start) : int(stop)]) == ROWS[3]


def test_places_in_compressed_files(made: dict[str, Path], tmp_path: Path) -> None:
    text = made["a.jsonl"].read_bytes()
    (tmp_path / "b").mkdir()
    for name in ("0.jsonl.gz", "1.jsonl.gz"):
        (tmp_path / "b" / name).write_bytes(gzip.compress(text))
    first, second = ps.find(tmp_path / "b", key="103").found
    assert (Path(first.path).name, Path(second.path).name) == ("0.jsonl.gz", "1.jsonl.gz")
    assert first.place == second.place
    start, _, stop = (second.place or "").removeprefix("bytes ").removesuffix(", unpacked").partition("-")
    assert json.loads(text[int(start) : int(stop)]) == ROWS[3]


def test_workers_change_nothing(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "look_stretch_samples", 3)
    alone = ps.find(dataset, text="hello")
    assert ps.find(dataset, text="hello", executor=_Shuffled()) == alone
    assert ps.find(dataset, text="hello", limit=2, executor=_Shuffled()) == ps.find(dataset, text="hello", limit=2)


class _Shuffled:
    """Pickles all that crosses, as processes do."""

    def map(self, fn: Any, tasks: Any) -> Iterator[Any]:
        import pickle

        return (pickle.loads(pickle.dumps(fn))(pickle.loads(pickle.dumps(task))) for task in tasks)


def test_tars_are_asked_by_their_keys_and_their_text_parts(tmp_path: Path) -> None:
    folder = tars(ROWS, tmp_path / "tars")
    report = ps.find(folder, key="k105")
    assert (indices(report), report.looked_at) == ([5], 0), "by the index, nothing is read"
    assert indices(ps.find(folder, key="nobody")) == []
    for text in ("hello", "\U0001f600"):
        assert indices(ps.find(folder, text=text)) == [n for n, row in enumerate(ROWS) if text in row["text"]]
    found = ps.find(folder, where="__key__ == 'k107' and startswith(text, 'gr')")
    assert [(one.index, one.key) for one in found.found] == [(7, "k107")]
    assert found.found[0].path.endswith(".tar")
    assert found.found[0].place


def test_documents_of_tokens_are_decoded(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    texts = ["the cat", "a dog", "a", "the dog"] * 3
    source.write_text("".join(json.dumps({"text": one}) + "\n" for one in texts))
    from penstock import pack

    pack(source, tmp_path / "a.pbin", tokenizer=TOKENIZER, executor="inline")
    found = ps.find(tmp_path / "a.pbin", text="dog", tokenizer=str(TOKENIZER))
    assert indices(found) == [n for n, one in enumerate(texts) if "dog" in one]
    with pytest.raises(ConfigError, match="--tokenizer"):
        ps.find(tmp_path / "a.pbin", text="dog")
    with pytest.raises(ConfigError, match="token documents have no keys"):
        ps.find(tmp_path / "a.pbin", key="1")
    with pytest.raises(ConfigError, match="token documents have no fields"):
        ps.find(tmp_path / "a.pbin", where="text == 'a'")


def test_what_is_refused(dataset: Path) -> None:
    wrongs: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, "exactly one search condition is needed"),
        ({"key": "a", "text": "b"}, "key and text"),
        ({"where": "lanng == 'en'"}, "no sample has this field"),
        ({"where": "meta.lanng == 'en'"}, "did you mean 'meta.lang'"),
        ({"key": "1", "key_field": "idd"}, "no sample has this field"),
        ({"where": "open('x')"}, "not allowed"),
        ({"text": "a", "limit": 0}, "limit"),
        ({"text": "a", "tokenizer": "x"}, "these samples aren't token documents"),
        ({"text": "a", "key_field": "id"}, "only works with a key"),
    )
    for wrong, what in wrongs:
        with pytest.raises(ConfigError, match=f"(?i){what}"):
            ps.find(dataset, **wrong)
    with pytest.raises(PrepareError, match=r"the expression fails on (the line at index 0|line 1)"):
        ps.find(dataset, where="len(id) > 2")
    with pytest.raises(NotFound):
        ps.find(dataset / "nothing.jsonl", text="a")


def test_a_regex_that_never_ends_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "a" * 40 + "b"}) + "\n")
    replace(monkeypatch, "find_expression_seconds", 0.0)
    with pytest.raises(PrepareError, match="backtracks too much"):
        ps.find(path, where="match(text, '(a+)+$')")


def test_sources_and_samples_without_keys() -> None:
    plain = MemorySource([{"a": 1}, {"a": "word"}])
    assert indices(ps.find(plain, text="word")) == [1]
    with pytest.raises(ConfigError, match="the samples have no keys"):
        ps.find(plain, key="1")
    keyed = KeyedSource([{"__key__": f"x{n}"} for n in range(5)])
    assert ps.find(keyed, key="x3").looked_at == 0
    with pytest.raises(ConfigError, match="already open"):
        ps.find(plain, text="word", format="jsonl")


@pytest.mark.parametrize("times", [1, 10])
def test_requests_grow_with_bytes_not_samples(times: int, tmp_path: Path) -> None:
    path = MAKERS["a.jsonl"](ROWS * times, tmp_path / "a.jsonl")
    with FileServer({"a.jsonl": path.read_bytes()}) as server:
        found = ps.find(f"{server.url}/a.jsonl", where="id == 103")
        assert len(found.found) == times
        gets = [one for one in server.log if "GET" in str(one)]
        assert len(gets) <= 12, "one a run of 16 MiB, and some for the index and the fields"
