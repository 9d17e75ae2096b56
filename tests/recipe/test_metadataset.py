"""Metadatasets of Energon: membership, counts and contents as it documents them; refusals."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import pytest

import penstock as ps
from penstock.errors import ConfigError, NotFound, PenstockError, UnsafeData
from penstock.recipe import open_metadataset, open_recipe, traverse_metadataset

from .conftest import GOLDEN, MDS


def pair(a: Any, b: Any) -> dict[str, Any]:
    return {"text_a": a["text"], "text_b": None if b is None else b["text"]}


def pair_kw(left: Any, right: Any) -> dict[str, Any]:
    return pair(left, right)


JOINERS = {"fixture_joiners.pair": pair, "fixture_joiners.pair_kw": pair_kw}


def load(name: str, split: str = "train", mode: str = "train", **options: Any) -> Any:
    return open_metadataset(MDS / f"{name}.yaml", split=split, mode=mode, joiners=JOINERS, **options)  # pyright: ignore[reportArgumentType]


def tags(source: Any) -> list[str]:
    samples = [source[index] for index in range(len(source))]
    return [f"{sample['__subflavors__'].get('src', '')}/{sample['__key__']}" for sample in samples]


@pytest.mark.parametrize("name", ["epochized", "subset_absolute", "subset_end", "subset_percent"])
def test_counts(name: str, expected: Any) -> None:
    source = load(name)
    assert Counter(tags(source)) == expected[name]["count_per_tag"]
    assert len(source) == expected[name]["total"]


def test_validation_is_one_after_another(expected: Any) -> None:
    assert tags(load("val_concat", "val", "val")) == expected["val_concat"]["order_one_rank_no_workers"]
    assert tags(load("blend", "val", "val")) == [f"a/s{number:03}" for number in range(20, 26)]


def test_subsets_of_subsets() -> None:
    assert tags(load("subset_jsonl")) == ["/2", "/3", "/4", "/5"]
    inner = [f"nested/s{number:03}" for number in range(5, 10)]
    assert tags(load("subset_nested")) == [*(f"a/s{number:03}" for number in range(4, 9)), *inner, *inner]


def test_fractions_are_exact() -> None:
    source = load("epochized_fraction")
    assert Counter(tag[0] for tag in tags(source)) == {"a": 10, "b": 21}
    assert source.counts == {"ds_a": 10, "ds_b": 21}


def test_what_is_excluded_is_gone() -> None:
    source = load("excluded")
    keys = {tag[1:] for tag in tags(source)}
    assert len(source) == len(keys) == 14
    assert not keys & {"s003", "s009", "s010", "s011", "s012", "deep/dir/s019"}


def test_the_outer_level_wins() -> None:
    source = load("nested_outer")
    seen = Counter(json.dumps(source[index]["__subflavors__"], sort_keys=True) for index in range(len(source)))
    outer = {"level": "outer", "only_inner": 2, "only_outer": 1}
    assert seen == {json.dumps(outer, sort_keys=True): 80, json.dumps({"level": "b"}): 14}


def test_first_version(expected: Any) -> None:
    stream = load("v1_legacy")
    assert isinstance(stream, ps.Blend)
    seen = {json.dumps(stream[position]["__subflavors__"], sort_keys=True) for position in range(64)}
    assert seen == {json.dumps(one, sort_keys=True) for one in expected["v1_legacy"]["subflavors"]}


def test_blend(expected: Any) -> None:
    stream = load("blend", seed=3)
    case = expected["blend_weights"]
    drawn = [stream.locate(position).path for position in range(4000)]
    for name, share in case["weights"].items():
        assert abs(drawn.count((f"ds_{name}",)) / 4000 - share) <= case["tolerance"]
    counts = Counter((at.path, at.index) for at in map(stream.locate, range(2000)))
    for name in ("ds_a", "ds_b"):
        own = [count for (path, _), count in counts.items() if path == (name,)]
        assert max(own) - min(own) <= 1


def test_blends_of_blends(tmp_path: Path) -> None:
    inner = tmp_path / "inner.yaml"
    inner.write_text(_v2(f"blend: [{{path: {_ds('a')}, weight: 1}}, {{path: {_ds('b')}, weight: 3}}]"))
    outer = tmp_path / "outer.yaml"
    outer.write_text(_v2(f"blend: [{{path: inner.yaml, weight: 1}}, {{path: {_ds('b')}, weight: 1}}]"))
    stream = open_metadataset(outer, seed=1)
    assert isinstance(stream, ps.Blend)
    seen = Counter(stream.locate(position).path for position in range(4096))
    assert seen[("ds_b",)] == 2048
    assert seen[("inner", "ds_a")] == 512
    assert seen[("inner", "ds_b")] == 1536


def test_an_empty_child_of_a_blend_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mix.yaml"
    nothing = f"{{path: {_ds('a')}, subset: {{range: ['0%', '0%']}}}}"
    file.write_text(_v2(f"blend: [{nothing}, {{path: {_ds('b')}}}]"))
    with pytest.raises(ConfigError, match=r"ds_a: the child 'ds_a': an empty source can't be ordered"):
        open_metadataset(file)
    outer = tmp_path / "outer.yaml"
    outer.write_text(_v2(f"blend: [{{path: mix.yaml}}, {{path: {_ds('b')}}}]"))
    with pytest.raises(ConfigError, match=r"ds_a: the child 'mix': the child 'ds_a': an empty source"):
        open_metadataset(outer)
    # Nothing is drawn of it there.
    assert len(open_metadataset(file, mode="val")) == 14


@pytest.mark.parametrize("name", ["join_none", "join_skip"])
def test_joins(name: str, expected: Any) -> None:
    source = load(name)
    rows = [[one["__key__"], one["text_a"], one["text_b"]] for one in map(source.__getitem__, range(len(source)))]
    assert sorted(rows, key=str) == sorted(expected[name]["rows"], key=str)
    copy = pickle.loads(pickle.dumps(source))
    assert copy[3] == source[3]


def test_join_by_name_in_the_order_of_the_first() -> None:
    source = load("join_b_first_skip")
    assert [source[index]["__key__"] for index in range(3)] == ["s000", "s002", "s004"]
    assert source[0]["text_a"].startswith("text-b")
    assert source[0]["text_b"] == "text-a 0"


def test_two_splits_of_one_join() -> None:
    assert len(load("join_two_splits")) == 20
    val = load("join_two_splits", "val", "val")
    assert [one["text_b"] for one in map(val.__getitem__, range(6))] == [None] * 6


def test_a_join_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="10 of 20 keys"):
        load("join_error")
    assert not [path for path in (tmp_path / "cache").rglob("*join*") if path.stat().st_size]


class Both(TypedDict):
    text: str


def test_joiners_that_are_classes(tmp_path: Path) -> None:
    file = tmp_path / "join.yaml"
    member = "dataset_config: text.yaml"
    head = f"join: [{{path: {_ds('b')}, {member}}}, {{path: {_ds('a')}, {member}, nonmatch: none}}]"
    file.write_text(_v2(f"{head}\n    joiner: {{__module__: mine, __class__: Both}}\n    subflavors: {{x: 1}}"))
    with pytest.raises(UnsafeData, match=r"mine\.Both"):
        open_metadataset(file)
    source: Any = open_metadataset(file, sample_types={"mine.Both": Both})
    sample = source[0]
    assert sample["text"] == "text-a 0"
    assert sample["__key__"] == "s000"
    assert sample["__subflavors__"] == {"x": 1}
    assert len(sample["__sources__"]) == 2
    again = open_recipe(json.loads(json.dumps(source.recipe())), sample_types={"mine.Both": Both})
    assert again.fingerprint == source.fingerprint
    assert again[3] == source[3]
    last = source[len(source) - 1]
    assert last["text"].startswith("text-b")


def test_subflavors_of_the_first_version_that_are_no_map(tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    kind = "__module__: megatron.energon\n__class__: Metadataset\n"
    row = f"{{weight: 1, path: {_ds('a')}, subflavor: x, subflavors: true}}"
    file.write_text(f"{kind}splits: {{train: {{datasets: [{row}]}}}}\n")
    with pytest.raises(ConfigError, match="subflavors"):
        open_metadataset(file)


def test_joiners_that_have_the_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "joins_of_mine.py").write_text("class Two:\n    from_joined = staticmethod(lambda a, b: {'both': 2})\n")
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "join.yaml"
    members = f"join: [{{path: {_ds('b')}}}, {{path: {_ds('a')}, nonmatch: skip}}]"
    file.write_text(_v2(f"{members}\n    joiner: {{__module__: joins_of_mine, __class__: Two}}"))
    with pytest.raises(UnsafeData):
        open_metadataset(file)
    source: Any = open_metadataset(file, trust=True)
    assert source[0]["both"] == 2
    assert open_recipe(source.recipe(), trust=True)[0] == source[0]


def test_an_empty_join_works(tmp_path: Path) -> None:
    file = tmp_path / "join.yaml"
    members = f"join: [{{path: {_ds('a')}, split_part: val}}, {{path: {_ds('b')}, split_part: train, nonmatch: skip}}]"
    file.write_text(_v2(f"{members}\n    joiner: {{__module__: fixture_joiners, __function__: pair}}"))
    source: Any = open_metadataset(file, joiners=JOINERS)
    assert len(source) == 0
    assert source.get_batch([]) is not None


def test_functions_are_imported_only_under_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fixture_joiners.py").write_text("def pair(a, b):\n    return {'mine': 1}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnsafeData, match="trust"):
        open_metadataset(MDS / "join_skip.yaml")
    source: Any = open_metadataset(MDS / "join_skip.yaml", trust=True)
    assert source[0]["mine"] == 1
    assert source[0]["__key__"] == "s000"


def test_aux(expected: Any) -> None:
    source = ps.Map(load("aux"), _look_up)
    rows = expected["aux"]["rows"]
    assert len(source) == len(rows)
    for index, (key, row, _) in enumerate(rows):
        assert source[index] == {"key": key, **row}


def _look_up(sample: Any, imgs: Any, media: Any) -> dict[str, Any]:
    row = sample["json"]
    read: dict[str, Callable[[str], bytes]] = {"imgs": imgs.get, "media": media.get}
    asked = {"imgs": row["image"], "media": row["fs"]}
    found = {name: {"asked": one, "sha256": hashlib.sha256(read[name](one)).hexdigest()} for name, one in asked.items()}
    return {"key": sample["__key__"], "row": row, **found}


def test_raw_contents(expected: Any) -> None:
    source = load("epochized", raw=True)
    for index in range(20):
        sample = source[index]
        parts = {name: hashlib.sha256(value).hexdigest() for name, value in sample.items() if isinstance(value, bytes)}
        assert parts == expected["crude_contents_ds_a_train"]["samples"][sample["__key__"]]


def test_traverse(expected: Any) -> None:
    found = [
        {
            "path": Path(leaf.path).relative_to(GOLDEN / "data").as_posix(),
            "split_part": leaf.split,
            "subflavors": dict(leaf.subflavors),
            "aux": {name: Path(path).name for name, (path, _) in leaf.aux.items()},
        }
        for leaf in traverse_metadataset(MDS / "aux_mixed.yaml")
    ]
    assert found == expected["traverse_aux_mixed"]["leaves"]


@pytest.mark.parametrize("path", sorted(MDS.glob("bad_*.yaml")), ids=lambda path: path.stem)
def test_refusals(path: Path) -> None:
    with pytest.raises(PenstockError) as caught:
        open_metadataset(path, joiners=JOINERS)
    assert caught.value.path is not None


def test_a_mistyped_key_is_named() -> None:
    with pytest.raises(ConfigError, match="'wieght'"):
        load("bad_unknown_key")


def test_the_nearest_key(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(_v2(f"path: {_ds('a')}\n    subflavor: {{a: 1}}"))
    with pytest.raises(ConfigError, match="Did you mean 'subflavors'"):
        open_metadataset(file)
    for kind, wrong, right in (("blend", "wieght", "weight"), ("blend_epochized", "repetition", "repetitions")):
        file.write_text(_v2(f"{kind}: [{{path: {_ds('a')}, {wrong}: 2}}]"))
        with pytest.raises(ConfigError, match=f"Did you mean '{right}'"):
            open_metadataset(file)
        with pytest.raises(ConfigError, match=f"Did you mean '{right}'"):
            open_recipe({kind: [{"path": _ds("a"), wrong: 2}]})


def test_a_file_in_itself(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(_v2("path: a.yaml"))
    with pytest.raises(ConfigError, match="contains itself"):
        open_metadataset(file)


def test_multipliers(tmp_path: Path) -> None:
    def stream(multiplier: str) -> Any:
        file = tmp_path / "a.yaml"
        one = f"{{path: {_ds('a')}, shuffle_over_epochs_multiplier: {multiplier}}}"
        file.write_text(_v2(f"blend: [{one}, {{path: {_ds('b')}}}]"))
        return open_metadataset(file, seed=1).children()["ds_a"]

    assert [stream("null").locate(position).index for position in range(40)] == [*range(20), *range(20)]
    once = Counter(stream("1").locate(position).index for position in range(20))
    assert set(once.values()) == {1}
    twice = [stream("2").locate(position).index for position in range(40)]
    assert set(Counter(twice).values()) == {2}
    assert set(Counter(twice[:20]).values()) != {1}
    replaced = [stream("-1").locate(position).index for position in range(400)]
    assert max(Counter(replaced).values()) - min(Counter(replaced).values()) > 2


def test_schemes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVDATASET_CACHE_DIR", str(tmp_path))
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "1").symlink_to(GOLDEN / "data" / "ds_a")
    file = tmp_path / "a.yaml"
    media = f"media: 'filesystem+file://{GOLDEN}/data/fs_media', rel: 'filesystem://set'"
    file.write_text(_v2(f"path: dss://set@1\n    aux: {{imgs: 'file://{GOLDEN}/data/aux_img', {media}}}"))
    source: Any = open_metadataset(file)
    assert len(source) == 20
    assert source.aux["media"].get("notes.txt")
    assert source.aux["imgs"].get("img_000.png")
    file.write_text(_v2("path: dss://set"))
    with pytest.raises(ConfigError, match="NVDATASET_CACHE_DIR"):
        open_metadataset(file)


def test_each_dataset_may_be_replaced() -> None:
    seen: list[Any] = []

    def each(source: Any, node: Any) -> Any:
        seen.append(dict(node.subflavors))
        return ps.Map(source, _upper)

    stream = load("blend", each=each)
    assert seen == [{"src": "a"}, {"src": "b"}]
    assert set(stream[0]) == {"key"}


def _upper(sample: Any) -> dict[str, Any]:
    return {"key": sample["__key__"].upper()}


def test_no_such_file() -> None:
    with pytest.raises(NotFound):
        open_metadataset(MDS / "nope.yaml")


def _ds(name: str) -> str:
    return str(GOLDEN / "data" / f"ds_{name}")


def _v2(body: str) -> str:
    return f"__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    {body}\n"
