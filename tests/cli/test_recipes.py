"""`penstock plan` and `penstock explain`."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.called import report, run

import penstock as ps

MDS = Path(__file__).parent.parent / "golden" / "energon-loading" / "data" / "mds"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
        for size in range(2, 40):
            writer.write({"tokens": [*range(1, size), 0]})
    (tmp_path / "recipe.yaml").write_text(
        "penstock: 1\nbatch: {global_batch: 4, world: 2}\n"
        "stream: {path: a.pbin, window: {chunk: {length: 16}}, map: 'not_a_module:fn', shuffle: {seed: 5}}\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_explain_a_blend(capsys: pytest.CaptureFixture[str]) -> None:
    stream: Any = ps.open_metadataset(MDS / "blend.yaml", seed=3)
    given = (str(MDS / "blend.yaml"), "--split", "train", "--global-batch", "8", "--seed", "3")
    found = report(capsys, "explain", *given, "--step", "5")["samples"]
    assert [one["position"] for one in found] == list(range(40, 48))
    for one in found:
        at = stream.locate(one["position"])
        assert (tuple(one["path"]), one["epoch"], one["index"], one["key"]) == (at.path, at.epoch, at.index, at.key)
    own = report(capsys, "explain", *given, "--step", "5", "--rank", "3", "--world", "4")["samples"]
    assert own == [one for one in found if one["position"] % 4 == 3]
    key = found[2]["key"]
    back = report(capsys, "explain", *given, "--step", "5", "--document", key)["samples"]
    assert found[2]["position"] in [one["position"] for one in back]
    assert {one["key"] for one in back} == {key}
    assert all(one["step"] == one["position"] // 8 for one in back)


def test_explain_one_epoch_is_shuffled_in_training(capsys: pytest.CaptureFixture[str]) -> None:
    stream = ps.Shuffle(ps.open_metadataset(MDS / "epochized.yaml"), 2)  # pyright: ignore[reportArgumentType]
    found = report(capsys, "explain", str(MDS / "epochized.yaml"), "--global-batch", "6", "--seed", "2", "--step", "1")
    assert [one["key"] for one in found["samples"]] == [stream.locate(position).key for position in range(6, 12)]


def test_explain_validation(capsys: pytest.CaptureFixture[str]) -> None:
    given = (str(MDS / "val_concat.yaml"), "--split", "val", "--global-batch", "8")
    found = report(capsys, "explain", *given, "--step", "4")["samples"]
    assert [one["key"] for one in found] == ["z101", "z100"]
    _, said = run(capsys, "explain", *given, "--step", "5", status=10)
    assert "ends before" in said


def test_explain_by_a_state(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    stream: Any = ps.open_metadataset(MDS / "blend.yaml", seed=3)
    loader = ps.Loader(stream, global_batch=8, rank=0, world=2, workers=0)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    other = ps.Loader(stream, global_batch=6, rank=0, world=3, workers=0)
    other.load_state_dict(loader.state_dict())
    next(iter(other))
    (place / "state.json").write_text(json.dumps(other.state_dict()))
    given = (str(MDS / "blend.yaml"), "--seed", "3", "--state", "state.json")
    found = report(capsys, "explain", *given, "--step", "3", "--rank", "1")
    assert [one["position"] for one in found["samples"]] == [25, 28]
    back = report(capsys, "explain", *given, "--document", found["samples"][0]["key"])
    assert (3, 1, 25) in [(one["step"], one["rank"], one["position"]) for one in back["samples"]]
    _, said = run(
        capsys, "explain", str(MDS / "blend.yaml"), "--seed", "4", "--state", "state.json", "--step", "1", status=11
    )
    assert "a different stream" in said
    run(capsys, "explain", *given[:-1], "none.json", "--step", "1", status=9)
    (place / "state.json").write_text("{")
    run(capsys, "explain", *given, "--step", "1", status=4)


def test_explain_our_own(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, "explain", "recipe.yaml", "--step", "2")
    assert (found["global_batch"], found["world"], len(found["samples"])) == (4, 2, 4)
    document = found["samples"][0]["documents"][0][0]
    back = report(capsys, "explain", "recipe.yaml", "--document", str(document))["samples"]
    assert found["samples"][0]["index"] in [one["index"] for one in back]
    out, _ = run(capsys, "explain", "recipe.yaml", "--step", "2")
    assert "step 2 (counted from 0): 4 samples, all ranks" in out
    assert "document " in out
    out, _ = run(capsys, "explain", "recipe.yaml", "--document", str(document), "--step", "0")
    assert "not read in the first" in out
    _, err = run(capsys, "explain", "recipe.yaml", "--document", "77777", status=9)
    assert "no source in this run contains document '77777'" in err
    run(capsys, "explain", "recipe.yaml", status=2)


def test_explain_needs_no_functions_of_joins(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, "explain", str(MDS / "join_skip.yaml"), "--global-batch", "4", "--step", "0")
    assert all(one["key"].startswith("s0") for one in found["samples"])


def test_plan(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, "plan", str(MDS / "blend.yaml"), "--global-batch", "100", "--steps", "50", "--world", "4")
    assert found["samples"] == 5000
    assert [one["path"] for one in found["sources"]] == ["ds_a", "ds_b"]
    assert sum(one["reads"] for one in found["sources"]) == pytest.approx(5000, abs=2)
    assert any("ds_a: its 20 samples are read 187" in one for one in found["warnings"])
    out, said = run(capsys, "plan", str(MDS / "blend.yaml"), "--global-batch", "100", "--steps", "50")
    assert "ds_b" in out
    assert "warning: ds_a" in said


def test_plan_says_which_stage_starves(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "plan", str(MDS / "blend.yaml"), "--global-batch", "20", "--profile", "30", "--workers", "1")
    assert "30 batches in" in out
    assert "1 workers:" in out
    assert "Training waits" in out or "doesn't wait" in out
    given = ("--global-batch", "4", "--world", "2", "--profile", "3", "--workers", "0")
    found = report(capsys, "plan", str(MDS / "blend.yaml"), *given)["profile"]
    assert (found["step"], found["consumed"], found["samples"], found["workers"]) == (3, 12, 6, 0)
    _, said = run(capsys, "plan", str(MDS / "blend.yaml"), "--profile", "3", status=10)
    assert "--global-batch" in said


def test_plan_our_own(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, "plan", "recipe.yaml", "--steps", "10")
    assert found["samples"] == 40
    assert found["bytes"] is not None
    run(capsys, "plan", "none.yaml", status=9)
    Path("bad.yaml").write_text("path: a.pbin\nshufle: true\n")
    _, said = run(capsys, "plan", "bad.yaml", status=10)
    assert "Did you mean 'shuffle'" in said


@pytest.mark.parametrize("option", ["--split", "--mode", "--seed", "--lanes"])
def test_what_a_recipe_says_itself_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    value = {"--split": "val", "--mode": "val"}.get(option, "4")
    for command in (["plan", "recipe.yaml", "--steps", "2"], ["explain", "recipe.yaml", "--step", "1"]):
        assert f"leave out {option}" in run(capsys, *command, option, value, status=2)[1]


def test_a_step_is_read_as_text(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    text = (
        "penstock: 1\nbatch: {global_batch: 48}\n"
        "stream: {path: a.pbin, window: {chunk: {length: 16, labels: shift}}, shuffle: {seed: 5}}\n"
    )
    (place / "windows.yaml").write_text(text)
    stream: Any = ps.open_recipe(place / "windows.yaml")
    shown, _ = run(capsys, "explain", "windows.yaml", "--step", "0", "--show")
    most = 0
    for position in range(48):
        row, written, is_off = stream[position], "", False
        mask, segments = row["loss_mask"].tolist(), row["segment_ids"].tolist()
        tokens = [*row["inputs"].tolist(), *row["targets"][-1:][mask[-1:]].tolist()]  # what the mask says is of targets
        begins = [
            stream.locate(position).documents[0][1] == 0,
            *(one != other for one, other in itertools.pairwise(segments)),
            False,
        ]
        for one, counts, is_first in zip(tokens, [False, *mask], begins, strict=False):
            written += "" if is_off is not counts else "⟧" if is_off else "⟦"
            is_off = not counts
            written += f"{'▌' if is_first else ''}{one} "
        documents = int(row["segment_ids"].max())
        most = max(most, documents)
        _, head, body = shown.partition(f"\n{position}: ")[2].split("\n")[:3]
        told = f"{len(tokens)} tokens, {documents} document{'' if documents == 1 else 's'}"
        told += f", {row['loss_mask'].sum()} in the loss"
        assert (head, body) == (f"  {told}", f"  {written}{'⟧' if is_off else ''}")
    assert most > 2
    one, _ = run(capsys, "explain", "windows.yaml", "--step", "0", "--show", "--index", stream.locate(7).index)
    assert "\n7: " in one
    assert "\n6: " not in one


def test_a_broken_sample_of_a_step_stands_in_its_place(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    with ps.create(place / "tars", format="webdataset") as writer:
        for number in range(4):
            writer.write({"__key__": f"k{number}", "json": b"{" if number == 1 else b'{"n": 7}'})
    (place / "tars.yaml").write_text(
        "penstock: 1\nbatch: {global_batch: 4}\nstream: {path: tars, shuffle: {seed: 1}}\n"
    )
    out, err = run(capsys, "explain", "tars.yaml", "--step", "0", "--show", status=6)
    lines = [one for one in out.splitlines() if one.partition(":")[0] in "0123" and ":" in one]
    assert [one[0] for one in lines] == list("0123")
    assert sum('"n": 7' in one for one in lines) == 3
    [broken] = (one for one in lines if "broken: " in one)
    assert "k1" in broken
    assert "k1" in err
    found, _ = run(capsys, "explain", "tars.yaml", "--step", "0", "--show", "--json", status=6)
    shown = json.loads(found)["shown"]
    assert [one["position"] for one in shown] == [0, 1, 2, 3]
    assert sum("broken" in one for one in shown) == 1


def test_samples_of_a_step_that_are_not_there_are_an_error(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    (place / "windows.yaml").write_text(
        "penstock: 1\nbatch: {global_batch: 4}\n"
        "stream: {path: a.pbin, window: {chunk: {length: 16}}, shuffle: {seed: 5}}\n"
    )
    given = ("explain", "windows.yaml", "--step", "0")
    index = report(capsys, *given)["samples"][0]["index"]
    out, _ = run(capsys, *given, "--show", "--index", index)
    assert "tokens" in out
    _, err = run(capsys, *given, "--show", "--index", "999999", status=9)
    assert "--index 999999" in err
    run(capsys, *given, "--show", "--key", "nobody", status=9)
    cut = report(capsys, *given, "--limit", "3")
    assert (len(cut["samples"]), cut["of"]) == (3, 4)
    out, _ = run(capsys, *given, "--limit", "3")
    assert "4 samples, all ranks; the first 3 are listed" in out


def test_a_tokenizer_that_does_not_fit_is_said(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    golden = Path(__file__).parent.parent / "golden" / "modalities" / "tokenizers"
    (place / "texts.jsonl").write_text('{"text": "the water of the mill, and the river"}\n' * 3)
    ps.pack(place / "texts.jsonl", place / "texts.pbin", tokenizer=str(golden / "bpe2"), executor="inline")
    for command in (
        ["head", "texts.pbin", "-n", "1"],
        ["head", "texts.pbin", "--pictures"],
        ["find", "texts.pbin", "--text", "q"],
    ):
        status = 1 if command[0] == "find" else 0
        _, err = run(capsys, *command, "--tokenizer", golden / "bpe2", status=status)
        assert "shown as text with" not in err
        out, err = run(capsys, *command, "--tokenizer", golden / "small1", status=status)
        assert "bpe2" in err and "shown as text with" in err and "small1" in err  # noqa: PT018
        largest = max(ps.open(place / "texts.pbin")[0]["tokens"])
        assert f"⟨{largest}⟩" in out or status


def test_documents_that_are_not_shown_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ps.create(str(tmp_path / "short.pbin"), format="pbin", token_bytes=2, eos_id=0) as writer:
        for number in range(60):
            writer.write({"tokens": [number + 1] * 7 + [0]})
    (tmp_path / "short.yaml").write_text("kind: chunk\nlength: 48\nsource: {kind: open, path: short.pbin}\n")
    out, _ = run(capsys, "explain", tmp_path / "short.yaml", "--global-batch", "1", "--step", "0")
    assert "document 3, tokens 0 to 7; 2 more (--json lists them)" in out
