"""A state goes on with the data it was made with, and says by name what is another."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import ResumeMismatch

WEIGHTS = {"books": 0.3, "web": 0.7}


def write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    write_lines(folder / "books.jsonl", [f"book {i}" for i in range(90)])
    write_lines(folder / "web.jsonl", [f"page {i}" for i in range(70)])
    write_lines(folder / "code.jsonl", [f"code {i}" for i in range(30)])
    return folder


def stream(corpus: Path, weights: dict[str, float] = WEIGHTS) -> Any:
    return ps.Blend({name: ps.open(str(corpus / f"{name}.jsonl")) for name in weights}, weights, 7)


def saved(data: Any, steps: int = 5) -> Any:
    run = ps.Loader(data, 16, rank=0, world=1, workers=0)
    batches = iter(run)
    for _ in range(steps):
        next(batches)
    return json.loads(json.dumps(run.state_dict()))


def go_on(data: Any, state: Any, accept: tuple[str, ...] = ()) -> tuple[list[str], Any, Any]:
    run = ps.Loader(data, 16, rank=0, world=1, workers=0)
    account = run.load_state_dict(state, accept=accept)
    return account, run, next(iter(run))["text"]


def grown(lines: list[str]) -> list[str]:
    return [*lines, json.dumps({"text": "one more"})]


def reordered(lines: list[str]) -> list[str]:
    return lines[::-1]


def replaced(lines: list[str]) -> list[str]:
    return [line.replace("page", "leaf") for line in lines]


@pytest.mark.parametrize("change", [grown, reordered, replaced])
def test_other_data_is_refused_and_named(corpus: Path, change: Any) -> None:
    state = saved(stream(corpus))
    path = corpus / "web.jsonl"
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
    for side in corpus.glob("*.idx"):
        side.unlink()
    with pytest.raises(ResumeMismatch, match=r"different: web: .*accept=\['web'\]"):
        go_on(stream(corpus), state)


def test_a_staged_copy_is_the_same_data(corpus: Path, tmp_path: Path) -> None:
    state = saved(stream(corpus))
    _, _, expected = go_on(stream(corpus), state)
    copy = tmp_path / "elsewhere" / "on scratch"
    shutil.copytree(corpus, copy, copy_function=shutil.copyfile)
    for path in copy.iterdir():
        os.utime(path, (1, 1))
    account, _, found = go_on(stream(copy), state)
    assert (account, found) == ([], expected)


def test_a_stage_added_after_what_was_consumed_resumes(corpus: Path) -> None:
    code = ps.Shuffle(ps.open(str(corpus / "code.jsonl")), 3)
    for before in (stream(corpus), ps.Stages([(200, stream(corpus)), (None, ps.Sequential(code.source))])):
        state = saved(before)
        later = ps.Stages([(100, stream(corpus)), (None, code)])
        account, run, batch = go_on(later, state)
        assert (account, batch) == ([], stream(corpus).get_batch(range(80, 96))["text"])
        second = next(iter(run))["text"]
        assert second == [*stream(corpus).get_batch(range(96, 100))["text"], *code.get_batch(range(12))["text"]]
    with pytest.raises(ResumeMismatch, match="recipe"):
        go_on(ps.Stages([(79, stream(corpus)), (None, code)]), state)


def test_an_edited_weight_is_refused_and_accepted_with_an_account(corpus: Path) -> None:
    before, after = stream(corpus), stream(corpus, {"books": 0.4, "web": 0.6})
    state = saved(before)
    with pytest.raises(ResumeMismatch, match="recipe"):
        go_on(after, state)
    account, run, batch = go_on(after, state, accept=("recipe",))
    assert batch == after.get_batch(range(80, 96))["text"]
    was, now = before.reads(80), after.reads(80)
    assert was["books"] < now["books"]
    assert account[0].endswith(
        f"positions of books: [{was['books']}, {now['books']}) are skipped; "
        f"positions of web: [{now['web']}, {was['web']}) are repeated"
    )
    kept = run.state_dict()
    assert [(entry[0], entry[1]) for entry in kept["accepted"]] == [(80, "recipe")]
    # From here on it is the new stream's state.
    assert go_on(after, json.loads(json.dumps(kept)))[0] == []
    with pytest.raises(ResumeMismatch):
        go_on(before, kept)


def test_a_replaced_child_is_accepted_by_name(corpus: Path) -> None:
    state = saved(stream(corpus))
    write_lines(corpus / "web.jsonl", [f"leaf {i}" for i in range(75)])
    for side in corpus.glob("*.idx"):
        side.unlink()
    with pytest.raises(ResumeMismatch):
        go_on(stream(corpus), state, accept=("books",))
    account, run, batch = go_on(stream(corpus), state, accept=("web",))
    assert batch == stream(corpus).get_batch(range(80, 96))["text"]
    assert "web changed after 80 samples" in account[0]
    assert f"its first {stream(corpus).reads(80)['web']} positions came from the old data" in account[0]
    assert run.state_dict()["accepted"][0][:2] == [80, "web"]


def test_another_seed_order_and_lanes_are_refused(corpus: Path) -> None:
    books, web = (ps.open(str(corpus / f"{name}.jsonl")) for name in ("books", "web"))

    def made(seed: int = 7, first: Any = None, lanes: int = 1) -> Any:
        children = {
            "books": ps.Shuffle(books, 1, lanes=lanes) if first is None else first,
            "web": ps.Shuffle(web, 2, lanes=lanes),
        }
        return ps.Blend(children, WEIGHTS, seed)

    state = saved(made())
    assert go_on(made(), state)[0] == []
    for other, name in (
        (made(seed=8), "recipe"),
        (made(first=ps.Shuffle(books, 3)), "books"),
        (made(lanes=2), "recipe"),
    ):
        with pytest.raises(ResumeMismatch, match=name):
            go_on(other, state)
    swapped = ps.Blend({"web": ps.Shuffle(web, 2), "books": ps.Shuffle(books, 1)}, WEIGHTS, 7)
    with pytest.raises(ResumeMismatch, match="recipe"):
        go_on(swapped, state)
