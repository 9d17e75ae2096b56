"""`trace`: from a file back to its first inputs, by the digests in side files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.internals import Origin, main, place_of, purge, put
from tests.look.datasets import shards, tars

import penstock as ps
from penstock import lineage, pack
from penstock.errors import NotFound

TOKENIZER = Path(__file__).parent.parent / "golden" / "modalities" / "tokenizers" / "bpe2"


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        rows = [{"id": n, "text": f"{name} the cat {n}"} for n in range(8)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ps.merge([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], tmp_path / "all.jsonl")
    ps.filter(tmp_path / "all.jsonl", tmp_path / "few.jsonl", where="id > 2", indices=list(range(3, 16)), match="the")
    pack(tmp_path / "few.jsonl", tmp_path / "few.pbin", tokenizer=TOKENIZER, executor="inline")
    ps.shuffle(tmp_path / "few.pbin", tmp_path / "mixed.pbin", seed=3)
    return tmp_path


def chain(origin: Origin) -> list[tuple[str, str]]:
    """Names and states, each below the one that was made of it; of several inputs the first."""
    return [(Path(origin.path).name, origin.state), *(chain(origin.inputs[0]) if origin.inputs else [])]


def test_back_to_the_first_lines(packed: Path) -> None:
    tree = lineage(packed / "mixed.pbin")
    names = [("mixed.pbin", "output"), ("few.pbin", "same"), ("few.jsonl", "same"), ("all.jsonl", "same")]
    assert chain(tree) == [*names, ("a.jsonl", "same")]
    assert tree.made_by == {"command": "shuffle", "seed": 3, "token_bytes": 2}
    tokens = tree.inputs[0]
    assert tokens.tokenizer
    assert tokens.made_by["command"] == "pack"
    kept = tokens.inputs[0].made_by
    assert (kept["command"], kept["where"], kept["match"], kept["field"]) == ("filter", "id > 2", "the", "text")
    assert (kept["num_indices"], len(kept["indices"])) == (13, 32)
    assert [Path(one.path).name for one in tokens.inputs[0].inputs[0].inputs] == ["a.jsonl", "b.jsonl"]


@pytest.mark.parametrize("to", ["pbin", "jsonl", "mds"])
def test_what_was_purged_says_so(packed: Path, to: str) -> None:
    source = packed / {"pbin": "few.pbin", "jsonl": "few.jsonl", "mds": "few.mds"}[to]
    if to == "mds":
        ps.convert(packed / "few.jsonl", source, to="mds")
    ps.exclude(source, indices=[2], reason="asked")
    purged = packed / f"purged.{to}"
    purge(source, purged, to=to)
    tree = lineage(purged)
    assert (tree.made_by["command"], tree.samples, Path(tree.inputs[0].path).name) == ("purge", 9, source.name)
    ps.merge([source], packed / f"merged.{to}", to=to)
    Path(f"{purged}.certificate.json").rename(packed / f"merged.{to}.certificate.json")
    assert lineage(purged).made_by["command"] == "merge"  # without its certificate it is told by who wrote it
    (packed / f"merged.{to}.certificate.json").write_text("{}")
    assert lineage(packed / f"merged.{to}").made_by["command"] == "merge"


def test_what_changed_and_what_is_elsewhere(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    away = tmp_path_factory.mktemp("away")
    (packed / "few.jsonl").rename(away / "few.jsonl")
    (packed / "few.jsonl.penstock").rename(away / "few.jsonl.penstock")
    assert chain(lineage(packed / "mixed.pbin"))[-1] == ("few.jsonl", "not found")
    found = chain(lineage(packed / "mixed.pbin", look_in=[away, packed]))
    assert found[-2:] == [("all.jsonl", "same"), ("a.jsonl", "same")]
    (packed / "few.jsonl").write_text('{"text": "another"}\n')
    assert chain(lineage(packed / "mixed.pbin"))[-1] == ("few.jsonl", "changed")
    assert chain(lineage(packed / "mixed.pbin", look_in=[away]))[2] == ("few.jsonl", "same"), "the one that was read"


def test_shards_and_splits_name_their_inputs(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"id": n, "text": "a", "meta": {}} for n in range(9)]
    shards(rows, tmp_path / "a")
    ps.filter(tmp_path / "a", tmp_path / "b", where="id < 5")
    ps.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "c")
    ps.split(tmp_path / "c", tmp_path / "parts", ratio=(1, 1))
    tree = lineage(tmp_path / "parts" / "c_train")
    assert chain(tree) == [("c_train", "output"), ("c", "same"), ("a", "same")]
    assert [Path(one.path).name for one in tree.inputs[0].inputs] == ["a", "b"]
    assert tree.inputs[0].inputs[1].made_by["where"] == "id < 5"


def test_what_verbs_make_of_samples_names_its_inputs(tmp_path: Path) -> None:
    rows = [{"id": n, "text": f"t{n}", "meta": {}} for n in range(6)]
    tars(rows, tmp_path / "tars")
    ps.merge([tmp_path / "tars"], tmp_path / "merged")
    ps.shuffle(tmp_path / "merged", tmp_path / "mixed", seed=1)
    part, _ = ps.split(tmp_path / "mixed", tmp_path, ratio=[1, 1])
    ps.convert(part.path, tmp_path / "mds", to="mds")
    ps.convert(tmp_path / "mds", tmp_path / "back", to="webdataset")
    ps.convert(ps.open(tmp_path / "mds"), tmp_path / "a.jsonl")
    ps.convert(tmp_path / "a.jsonl", tmp_path / "again", to="mds")
    first = [(name, "same") for name in ("mds", "mixed_train", "mixed", "merged", "tars")]
    assert chain(lineage(tmp_path / "back")) == [("back", "output"), *first]
    assert chain(lineage(tmp_path / "again")) == [("again", "output"), ("a.jsonl", "same"), *first]
    assert lineage(tmp_path / "mixed").made_by["command"] == "shuffle"
    assert lineage(tmp_path / "a.jsonl").made_by["command"] == "convert"
    (tmp_path / "t.csv").write_text("id,text\n1,a\n")
    ps.convert(tmp_path / "t.csv", tmp_path / "table", to="mds")
    assert chain(lineage(tmp_path / "table")) == [("table", "output"), ("t.csv", "same")]
    (tmp_path / "t.csv").write_text("id,text\n1,b\n")
    assert chain(lineage(tmp_path / "table")) == [("table", "output"), ("t.csv", "changed")]


def test_a_side_file_of_a_stranger_leads_nowhere(tmp_path: Path) -> None:
    def write(name: str, **inputs: str) -> Path:
        path = tmp_path / name
        with ps.create(path, format="jsonl", inputs=inputs, options={}) as writer:
            writer.write({"a": 1})
        return path

    outside = tmp_path.parent / "outside.jsonl"
    outside.write_text('{"a": 1}\n')
    digest = ps.open(outside).fingerprint
    names = ("../outside.jsonl", str(outside), "/dev/zero", "", "x/../../outside.jsonl")
    tree = lineage(write("a.jsonl", **dict.fromkeys(names, digest)))
    assert [one.state for one in tree.inputs] == ["not found"] * len(names)
    # Two files that name one another, and each itself: the walk ends.
    same = ps.open(write("b.jsonl")).fingerprint
    write("c.jsonl", **{"d.jsonl": same, "c.jsonl": same})
    write("d.jsonl", **{"c.jsonl": same, "d.jsonl": same})
    itself, other = lineage(tmp_path / "c.jsonl").inputs
    assert (itself.state, other.state, [one.state for one in other.inputs]) == (
        "not found",
        "same",
        ["same", "not found"],
    )
    assert other.inputs[0].inputs == ()


def test_the_command(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["lineage", str(packed / "few.jsonl")])
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert "few.jsonl: output, 10 samples; filter" in first
    assert second.startswith("  ")
    with pytest.raises(NotFound, match="no side file records"):
        lineage(packed / "a.jsonl")
    with pytest.raises(NotFound):
        lineage(packed / "nothing.jsonl")


def test_inputs_that_were_a_folder_are_found_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`pack raw -o train.pbin`: a side file names what lies below `raw`, and says of no folder where it was."""
    for folder in ("other", "raw/a", "raw/b"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "x.jsonl").write_text(f'{{"text": "{folder}"}}\n')
    (tmp_path / "other/a").mkdir()
    (tmp_path / "other/a/x.jsonl").write_text('{"text": "another of that name"}\n')
    pack(tmp_path / "raw", tmp_path / "train.pbin", tokenizer=TOKENIZER, executor="inline")
    packed = lineage(tmp_path / "train.pbin")
    assert [(one.path.removeprefix(str(tmp_path)), one.state) for one in packed.inputs] == [
        ("/raw/a/x.jsonl", "same"),
        ("/raw/b/x.jsonl", "same"),
    ]
    (tmp_path / "raw/b/x.jsonl").rename(tmp_path / "elsewhere.jsonl")
    with pytest.raises(SystemExit):
        main(["lineage", str(tmp_path / "train.pbin")])
    told = capsys.readouterr()
    assert "b/x.jsonl: not found" in told.out
    assert "--look-in DIR" in told.err


def test_inputs_in_a_bucket_and_on_a_disk(
    tmp_path: Path, s3_server: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Those of a bucket are known by a version, which no file of this machine has: one of the same name is another."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path_factory.mktemp("cache")))
    bucket = f"s3://bucket/{tmp_path.name}"
    (tmp_path / "a.jsonl").write_text('{"text": "the cat"}\n')
    raw, other = place_of(f"{bucket}/raw/a.jsonl"), place_of(f"{bucket}/other/a.jsonl")
    put(raw.store, raw.path, (tmp_path / "a.jsonl").read_bytes())
    pack(f"{bucket}/raw/a.jsonl", tmp_path / "far.pbin", tokenizer=TOKENIZER, executor="inline")
    pack(f"{bucket}/raw/a.jsonl", f"s3://bucket/{tmp_path.name}.pbin", tokenizer=TOKENIZER, executor="inline")
    pack(tmp_path / "a.jsonl", tmp_path / "near.pbin", tokenizer=TOKENIZER, executor="inline")
    for made in (tmp_path / "far.pbin", f"s3://bucket/{tmp_path.name}.pbin"):
        assert chain(lineage(made))[1:] == [("a.jsonl", "not found")]
        assert chain(lineage(made, look_in=[f"{bucket}/raw"]))[1:] == [("a.jsonl", "same")]
    (tmp_path / "a.jsonl").unlink()
    assert chain(lineage(tmp_path / "near.pbin", look_in=[f"{bucket}/raw"]))[1:] == [("a.jsonl", "same")]
    put(other.store, other.path, b'{"text": "a dog"}\n')
    for made in (tmp_path / "far.pbin", tmp_path / "near.pbin"):
        assert chain(lineage(made, look_in=[f"{bucket}/other"]))[1:] == [("a.jsonl", "changed")]
