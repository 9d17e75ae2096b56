"""`pack --shuffle SEED`: the documents of `pack`, in the order and the bytes of `shuffle`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.internals import current, replace
from tests.prepare.chat_styles import STYLES, write_tokenizer
from tests.prepare.conftest import TEXTS, names_in, stored_tokens, write_lines

import penstock as ps
from penstock.errors import ConfigError
from penstock.prepare import PackReport

Made = Callable[..., PackReport]
SEED = 7


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "shuffled_part_tokens", 700)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "corpus.jsonl", ({"text": f"{n} {text}"} for n, text in enumerate(TEXTS * 3)))


def data(path: Path) -> dict[str, bytes]:
    """The data files of a dataset, without what is said of them."""
    found = [one for one in (path.rglob("*") if path.is_dir() else path.parent.glob(f"{path.stem}.*")) if one.is_file()]
    kept = [one for one in found if ".penstock" not in one.name and one.name != "index.json"]
    return {str(one.relative_to(path)) if path.is_dir() else one.suffix: one.read_bytes() for one in kept}


@pytest.mark.parametrize("name", ["{}.pbin", "{}.idx", "{}.zarr", "{}"])
def test_bytes_of_pack_and_shuffle(name: str, corpus: Path, made: Made, tmp_path: Path) -> None:
    to = {"to": "mds"} if name == "{}" else {}
    plain, expected, found = (tmp_path / name.format(one) for one in ("plain", "expected", "found"))
    made(corpus, plain, **to)
    ps.shuffle(plain, expected, seed=SEED)
    report = made(corpus, found, shuffle=SEED, task_bytes=2000, **to)
    assert stored_tokens(found) == stored_tokens(expected) != stored_tokens(plain)
    if name == "{}":  # a shard's head names what it holds in another order of words
        return
    assert data(found) == data(expected)
    assert report.manifest is not None
    assert report.manifest.options["shuffle"] == SEED
    assert ps.verify(found, depth="full") == []


def test_same_bytes_whoever_works(corpus: Path, made: Made, tmp_path: Path) -> None:
    options = {"shuffle": SEED, "file_tokens": 1500}
    made(corpus, tmp_path / "plain.pbin")
    ps.shuffle(tmp_path / "plain.pbin", tmp_path / "expected.pbin", seed=SEED)
    made(corpus, f"{tmp_path}/a/", **options)
    made(corpus, f"{tmp_path}/b/", workers=2, task_bytes=3000, **options)
    for part in range(3):
        made(corpus, f"{tmp_path}/c/", task_bytes=2000, part=(part, 3), **options)
    made(corpus, f"{tmp_path}/c/", task_bytes=2000, finish=True, no_work=True, **options)
    assert stored_tokens(tmp_path / "a") == stored_tokens(tmp_path / "expected.pbin")
    assert data(tmp_path / "a") == data(tmp_path / "b") == data(tmp_path / "c")
    assert len(data(tmp_path / "a")) > 3
    assert not [name for name in names_in(tmp_path) if "work" in name]


def test_shares_of_one_file(corpus: Path, made: Made, tmp_path: Path) -> None:
    made(corpus, shuffle=SEED)
    for part in (1, 0):
        made(corpus, tmp_path / "b.pbin", task_bytes=2000, part=(part, 2), shuffle=SEED)
    made(corpus, tmp_path / "b.pbin", task_bytes=2000, finish=True, no_work=True, shuffle=SEED)
    assert (tmp_path / "b.pbin").read_bytes() == (tmp_path / "out.pbin").read_bytes()


def test_killed_while_it_shuffles(corpus: Path, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(corpus, tmp_path / "a.pbin", shuffle=SEED)
    plain, seen = current("shuffle_part"), list[int]()

    def dies(job: Any, task: Any) -> Any:
        seen.append(task.number)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return plain(job, task)

    with monkeypatch.context() as patched:
        replace(patched, "shuffle_part", dies)
        with pytest.raises(KeyboardInterrupt):
            made(corpus, shuffle=SEED)
    with pytest.raises(ConfigError, match="shuffle"):
        made(corpus, shuffle=SEED + 1)
    seen.clear()
    replace(monkeypatch, "shuffle_part", lambda job, task: (seen.append(task.number), plain(job, task))[1])
    made(corpus, shuffle=SEED)
    assert seen
    assert min(seen) == 2, "two parts were there"
    assert (tmp_path / "a.pbin").read_bytes() == (tmp_path / "out.pbin").read_bytes()


@pytest.mark.parametrize("output", ["found.pbin", "found/"])
def test_masks_go_along(output: str, bpe2: Path, tmp_path: Path) -> None:
    tokenizer = write_tokenizer(bpe2, tmp_path / "tokenizer", STYLES["chatml"])
    turns = (
        {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": text}]}
        for n, text in enumerate(TEXTS)
    )
    lines = write_lines(tmp_path / "in.jsonl", turns)
    options: dict[str, Any] = {"tokenizer": tokenizer, "chat": True, "executor": "inline", "task_bytes": 3000}
    ps.pack(lines, tmp_path / "plain.pbin", **options)
    ps.shuffle(tmp_path / "plain.pbin", tmp_path / "expected.pbin", seed=SEED)
    options |= {"file_tokens": 2000} if output.endswith("/") else {}
    ps.pack(lines, f"{tmp_path}/{output}", shuffle=SEED, **options)
    expected: Any = ps.open(tmp_path / "expected.pbin")
    found: Any = ps.open(tmp_path / output)
    assert len(found) == len(expected) == len(TEXTS)
    for at in range(len(found)):
        assert found[at]["tokens"].tolist() == expected[at]["tokens"].tolist()
        assert found[at]["loss_mask"].tolist() == expected[at]["loss_mask"].tolist()
    assert ps.verify(tmp_path / output, depth="full") == []


def test_no_row_map(corpus: Path, made: Made) -> None:
    with pytest.raises(ConfigError, match="can't have a row map"):
        made(corpus, shuffle=SEED, keep_map=True)


@pytest.mark.parametrize("output", ["out.pbin", "out/"])
def test_conversations_in_a_bucket(
    output: str, s3_server: str, bpe2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens and masks in an object store, shuffled and not, are those of a disk."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    bucket = f"bucket/{tmp_path.name}"
    tokenizer = write_tokenizer(bpe2, tmp_path / "tokenizer", STYLES["chatml"])
    asked = ({"role": "user", "content": f"{n}?"} for n in range(60))
    turns = ({"messages": [one, {"role": "assistant", "content": TEXTS[n]}]} for n, one in enumerate(asked))
    lines = write_lines(tmp_path / "in.jsonl", turns)
    options: dict[str, Any] = {"tokenizer": tokenizer, "chat": True, "executor": "inline", "task_bytes": 3000}
    options |= {"file_tokens": 2000} if output.endswith("/") else {}
    for seed in (None, SEED):
        ps.pack(lines, f"{tmp_path}/{seed}-{output}", shuffle=seed, **options)
        ps.pack(lines, f"s3://{bucket}/{seed}-{output}", shuffle=seed, **options)
        here: Any = ps.open(f"{tmp_path}/{seed}-{output}")
        there: Any = ps.open(f"s3://{bucket}/{seed}-{output}")
        for at in range(60):
            assert there[at]["tokens"].tolist() == here[at]["tokens"].tolist()
            assert there[at]["loss_mask"].tolist() == here[at]["loss_mask"].tolist()
