"""Recipes: every kind of node comes back with the same fingerprint; short forms; refusals; the schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.internals import RECIPE_KINDS as KINDS
from tests.internals import ModalitiesShuffle, SeqaxParams, SeqaxPass, read_schema, recipe_schema, schema_text

import penstock as ps
from penstock.cook import Cooker, Crude, cook
from penstock.errors import ConfigError, FormatError, NotFound, UnsafeData
from penstock.recipe import open_recipe, read_recipe

from .conftest import GOLDEN, MDS
from .functions import beside, double, in_pairs, length, together

NAMED = {f"{fn.__module__}:{fn.__qualname__}": fn for fn in (beside, double, in_pairs, length, together)}
VALIDATOR = jsonschema.Draft202012Validator(read_schema())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small dataset of every kind."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for name in ("books", "web"):
        with ps.create(folder / f"{name}.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
            for size in rng.integers(2, 40, 60).tolist():
                writer.write({"tokens": [*rng.integers(1, 500, size).tolist(), 0]})
    lines = [json.dumps({"id": number, "text": "x" * (number % 7 + 1)}) for number in range(40)]
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    with ps.create(folder / "mds", format="mds", columns={"id": "int", "text": "str"}, size_limit=200) as writer:
        for number in range(40):
            writer.write({"id": number, "text": "y"})
    with ps.create(folder / "flat.zarr", format="flat-tokens", split="train") as writer:
        for size in (5, 7, 90):
            writer.write({"tokens": np.arange(1, size, dtype=np.uint32)})
    return folder


Kind = Callable[[Path], Any]


def books(folder: Path) -> Any:
    return ps.open(folder / "books.pbin")


def web(folder: Path) -> Any:
    return ps.open(folder / "web.pbin")


def rows(folder: Path) -> Any:
    return ps.open(folder / "rows.jsonl")


def windows(folder: Path) -> Any:
    return ps.Chunk(16, labels="shift")(books(folder))


def mix(folder: Path) -> Any:
    weights = {"books": 0.3, "web": 0.7}
    chunk = ps.Chunk(16)
    return ps.Blend({"books": chunk(books(folder)), "web": chunk(web(folder))}, weights, seed=7, lanes=2)


def wds(name: str, **options: Any) -> Any:
    return ps.open(GOLDEN / "data" / name, split="train", **options)


def streaming(folder: Path, **options: Any) -> Any:
    return ps.StreamingOrder(ps.open(folder / "mds"), world=(1, 2, 1), batch_size=4, shuffle=True, **options)


NODES: dict[str, Kind] = {
    "open": books,
    "open jsonl": rows,
    "open energon": lambda folder: ps.open(GOLDEN / "data" / "primary.jsonl", flavor="energon", raw=True),
    "open flat": lambda folder: ps.open(folder / "flat.zarr", split="train"),
    "open mds": lambda folder: ps.open(folder / "mds", columns=["id"]),
    "open folder": lambda folder: ps.open(GOLDEN / "data" / "fs_media", format="folder", raw=True),
    "open webdataset": lambda folder: wds("ds_a", raw=True),
    "open crude": lambda folder: wds("ds_a"),
    "metadataset": lambda folder: ps.open_metadataset(MDS / "excluded.yaml"),
    "take": lambda folder: ps.Take(rows(folder), 3, 17),
    "take tokens": lambda folder: ps.Take(books(folder), 3, 17),
    "subset": lambda folder: ps.subset(ps.subset(rows(folder), [4, "end"]), ["10%", "50%"]),
    "subflavors": lambda folder: ps.open_metadataset(MDS / "nested_outer.yaml"),
    "concat": lambda folder: ps.Concat([books(folder), web(folder)]),
    "concat rows": lambda folder: ps.Concat([rows(folder), ps.Take(rows(folder), 0, 5)]),
    "join": lambda folder: ps.Join(wds("ds_a"), wds("ds_b"), how="none"),
    "join named": lambda folder: ps.Join({"left": wds("ds_b"), "right": wds("ds_a")}, how="skip", joiner=beside),
    "epochs": lambda folder: ps.Epochs({"a": (rows(folder), 2), "b": (ps.Shuffle(rows(folder), 3), 0.5)}).of_pass(2),
    "aux": lambda folder: ps.WithAux(rows(folder), images=ps.open(GOLDEN / "data" / "aux_img", raw=True)),
    "map": lambda folder: ps.Map(NODES["aux"](folder), double),
    "cook": lambda folder: cook(rows(folder), [Cooker(double, {"a": 1}), double], seed=4),
    "crude": lambda folder: Crude(rows(folder), subflavors={"a": 1}),
    "chunk": windows,
    "whole": lambda folder: ps.Whole(32, pad_id=3)(books(folder)),
    "whole from zero": lambda folder: ps.Whole(32, labels="start-zero")(books(folder)),
    "best-fit": lambda folder: ps.BestFit(64)(books(folder)),
    "fill-in-the-middle": lambda folder: ps.FillInTheMiddle(
        books(folder), rate=0.5, prefix_id=500, middle_id=501, suffix_id=502, seed=3
    ),
    "megatron-blocks": lambda folder: ps.MegatronBlocks(16, labels="shift")(books(folder)),
    "pack-by-length": lambda folder: ps.PackByLength(rows(folder), 9, length, together),
    "seqax-pass": lambda folder: SeqaxPass(rows(folder), SEQAX),
    "shuffle": lambda folder: ps.Shuffle(windows(folder), 9, lanes=2),
    "shuffle blocks": lambda folder: ps.Shuffle(rows(folder), 9, mode="blocks", block_size=5, open_blocks=3),
    "sequential": lambda folder: ps.Sequential(rows(folder), lanes=4),
    "modalitiesshuffle": lambda folder: ModalitiesShuffle(rows(folder), 5),
    "blend": mix,
    "blend of blends": lambda folder: _blends(folder),
    "blend of metadatasets": lambda folder: ps.open_metadataset(MDS / "blend.yaml", seed=5),
    "stages": lambda folder: ps.Stages([(64, mix(folder)), (None, ps.Shuffle(windows(folder), 1, lanes=2))]),
    "skip": lambda folder: ps.Skip(mix(folder), [(10, 20), (40, 42)]),
    "balance": lambda folder: ps.Balance(ps.Shuffle(NODES["pack-by-length"](folder), 3), 4, steps=2, seed=1),
    "streaming-order": streaming,
    "streaming-order of several": lambda folder: ps.StreamingOrder(
        [(ps.open(folder / "mds"), {"choose": 17}), (ps.open(folder / "mds"), {"choose": 40})], batch_size=4
    ),
    "streaming-order resumed": lambda folder: _resumed(folder),
    "pack-stream": lambda folder: ps.PackStream(ps.Shuffle(rows(folder), 1, lanes=2), 4, in_pairs, together),
}  # fmt: skip


SEQAX = SeqaxParams(batch=4, streams=2, seed=3, sequences_per_read_block=2, read_blocks_per_shuffle_buffer=2)


def _blends(folder: Path) -> Any:
    web_stream = ps.Shuffle(ps.Chunk(16)(web(folder)), lanes=2)
    return ps.Blend({"mix": mix(folder), "web": web_stream}, {"mix": 1, "web": 2})


def _resumed(folder: Path) -> Any:
    order = streaming(folder)
    order.load_state_dict(streaming(folder).state_dict(16))
    return order


def test_every_kind_is_tried(data: Path) -> None:
    seen: set[str] = set()
    for make in NODES.values():
        _collect(make(data).recipe(), seen)
    # These two are written by people alone.
    assert seen == set(KINDS) - {"metadataset", "subset"}


def _collect(value: Any, seen: set[str]) -> None:
    if isinstance(value, dict):
        if "kind" in value:
            seen.add(value["kind"])
        for one in value.values():
            _collect(one, seen)
    elif isinstance(value, list):
        for one in value:
            _collect(one, seen)


@pytest.mark.parametrize("name", NODES)
def test_round_trip(name: str, data: Path) -> None:
    node = NODES[name](data)
    recipe = json.loads(json.dumps(node.recipe()))
    VALIDATOR.validate(recipe)
    again = open_recipe(recipe, functions=NAMED)
    assert again.fingerprint == node.fingerprint
    assert json.loads(json.dumps(again.recipe())) == recipe
    assert type(again) is type(node)
    if hasattr(node, "__getitem__"):
        assert repr(again[2]) == repr(node[2])


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_files(suffix: str, data: Path) -> None:
    stream = mix(data)
    file = data / f"recipe.{suffix}"
    text = json.dumps(stream.recipe()) if suffix == "json" else yaml.safe_dump(stream.recipe())
    file.write_text(text.replace(str(data) + "/", ""))
    assert open_recipe(file).fingerprint == stream.fingerprint


def test_short_forms(data: Path) -> None:
    file = data / "short.yaml"
    file.write_text("""
penstock: 1
batch: {global_batch: 32, micro_batch: 4}
stream:
  stages:
    - length: 64
      blend:
        - {path: books.pbin, weight: 0.3}
        - {path: web.pbin, weight: 0.7}
      window: {chunk: {length: 16}}
      seed: 7
      lanes: 2
    - {path: books.pbin, window: {chunk: {length: 16, labels: shift}}, shuffle: {seed: 1, lanes: 2}}
""")
    assert open_recipe(file).fingerprint == NODES["stages"](data).fingerprint
    assert read_recipe(file).batch == {"global_batch": 32, "micro_batch": 4}
    VALIDATOR.validate(yaml.safe_load(file.read_text()))


def test_short_modifiers(data: Path) -> None:
    made = open_recipe(
        {
            "path": str(data / "rows.jsonl"),
            "subset": {"range": ["0%", "50%"]},
            "subflavors": {"a": 1},
            "aux": {"images": str(GOLDEN / "data" / "aux_img"), "media": f"filesystem://{GOLDEN}/data/fs_media"},
            "map": f"{double.__module__}:double",
            "shuffle": {"seed": 3},
            "skip": [[0, 4]],
            "pack": {"window": 2, "merge": f"{together.__module__}:together"},
        },
        functions=NAMED,
    )
    assert [type(node).__name__ for node in _chain(made)] == [
        "PackStream", "Skip", "OrderedStream", "MappedSource", "AuxSource", "Flavored", "TakenSource", "JsonlSource"
    ]  # fmt: skip
    inner = made.stream.stream.source
    assert len(inner) == 20
    assert inner[0]["stores"] == ["images", "media"]


def test_fill_in_the_middle_of_a_mix_is_of_each_dataset(data: Path) -> None:
    """Below its windows: text is rearranged before it is cut."""
    fim = {"rate": 0.5, "seed": 3, "prefix_id": 500, "middle_id": 501, "suffix_id": 502}
    made = open_recipe(
        {
            "blend": [{"path": str(data / f"{name}.pbin"), "weight": 1} for name in ("books", "web")],
            "fill-in-the-middle": fim,
            "window": {"chunk": {"length": 16}},
        }
    )
    for child in made.children().values():
        assert [type(node).__name__ for node in _chain(child)][-3:] == ["Windows", "FillInTheMiddle", "PbinSource"]
    alone = open_recipe({"path": str(data / "books.pbin"), "fill-in-the-middle": fim})
    assert alone.fingerprint == NODES["fill-in-the-middle"](data).fingerprint


def _chain(node: Any) -> list[Any]:
    children = list(node.children().values())
    return [node, *(_chain(children[0]) if children else [])]


def test_members_of_a_join_may_be_parts() -> None:
    a, b = (str(GOLDEN / "data" / name) for name in ("ds_a", "ds_b"))
    half = {"path": a, "split": "train", "subset": {"range": ["0%", "50%"]}, "subflavors": {"half": 1}}
    whole = {"path": b, "split": "train", "nonmatch": "none"}
    joined = open_recipe({"join": [half, whole]})
    alone = open_recipe({"join": [{"path": a, "split": "train"}, whole]})
    assert len(joined) == len(alone) // 2 == 10
    assert [joined.key_of(row) for row in range(10)] == [alone.key_of(row) for row in range(10)]
    assert open_recipe(joined.recipe()).fingerprint == joined.fingerprint
    rest = {**half, "subset": {"range": ["50%", "100%"]}}
    again = open_recipe({"join": [{"concat": [half, rest]}, whole]})
    assert [again.key_of(row) for row in range(len(again))] == [alone.key_of(row) for row in range(len(alone))]


def test_an_empty_child_of_a_blend_is_named(data: Path) -> None:
    nothing = {"path": str(data / "mds"), "subset": {"range": ["0%", "0%"]}}
    other = {"path": str(data / "rows.jsonl")}
    with pytest.raises(ConfigError, match=r"/mds: the child 'mds': an empty source can't be ordered"):
        open_recipe({"blend": [nothing, other]})
    for order in ("shuffle", "sequential"):
        with pytest.raises(ConfigError, match=r"/mds: children\.mds: an empty source can't be ordered"):
            open_recipe({"blend": [{**nothing, order: True}, other]})


def test_epochized_in_epochized() -> None:
    ds_a, ds_b = (str(GOLDEN / "data" / f"ds_{name}") for name in "ab")
    inner = {"blend_epochized": [{"path": ds_a, "repetitions": 2}, {"path": ds_b}], "repetitions": 0.5, "name": "x"}
    source = open_recipe({"blend_epochized": [inner, {"path": ds_b, "name": "b"}]})
    assert source.counts == {"x/ds_a": 20, "x/ds_b": 7, "b": 14}


def test_a_subset_of_a_mix_is_of_each_dataset() -> None:
    ds_a, ds_b = (str(GOLDEN / "data" / f"ds_{name}") for name in "ab")
    mixed = {"blend_epochized": [{"path": ds_a}, {"path": ds_b, "subset": {"range": [4, 14]}}]}
    source = open_recipe({**mixed, "subset": {"range": ["0%", "50%"]}})
    assert source.counts == {"ds_a": 10, "ds_b": 5}


def test_metadatasets_are_recipes(tmp_path: Path) -> None:
    assert open_recipe(MDS / "epochized.yaml").fingerprint == ps.open_metadataset(MDS / "epochized.yaml").fingerprint
    same = ps.open_metadataset(MDS / "blend.yaml", seed=4).fingerprint
    assert open_recipe(MDS / "blend.yaml", seed=4).fingerprint == same
    outer = tmp_path / "outer.yaml"
    outer.write_text(f"path: {MDS}/epochized.yaml\nshuffle: {{seed: 2}}\n")
    shuffled = ps.Shuffle(ps.open_metadataset(MDS / "epochized.yaml"), 2)
    assert open_recipe(outer).fingerprint == shuffled.fingerprint


REFUSED: dict[str, tuple[Any, str]] = {
    "key": ({"kind": "shuffle", "sead": 1, "source": {"path": "a"}}, "Did you mean 'seed'"),
    "kind": ({"kind": "shufle", "source": {"path": "a"}}, "Did you mean 'shuffle'"),
    "short key": ({"path": "a", "shufle": True}, "Did you mean 'shuffle'"),
    "two forms": ({"path": "a", "blend": []}, "needs exactly one of"),
    "no form": ({"seed": 1}, "needs exactly one of"),
    "lacks": ({"kind": "shuffle", "seed": 1}, "lacks source"),
    "both": ({"kind": "map", "fn": "a:b", "source": {"path": "a"}, "stream": {"path": "a"}}, "lacks source or stream"),
    "type": ({"kind": "take", "start": "x", "stop": 2, "source": {"path": "a"}}, r"start"),
    "range": ({"kind": "chunk", "length": 0, "source": {"path": "a"}}, "1 or more"),
    "enum": ({"kind": "shuffle", "mode": "blcks", "source": {"path": "a"}}, "Did you mean 'blocks'"),
    "item": ({"kind": "blend", "children": [{"name": "a", "weigth": 1, "stream": {}}]}, "Did you mean 'weight'"),
    "window": ({"path": "a", "window": {"chnk": {}}}, "Did you mean 'chunk'"),
    "top": ({"penstock": 1, "strem": {"path": "a"}}, "Did you mean 'stream'"),
    "version": ({"penstock": 2, "stream": {"path": "a"}}, "unsupported recipe version"),
    "batch": ({"batch": {"global": 3}, "stream": {"path": "a"}}, "Did you mean 'global_batch'"),
    "no map": ({"kind": "shuffle", "source": 3}, "is not a mapping"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    recipe, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        open_recipe(recipe)


def test_streams_and_sources_are_told_apart(data: Path) -> None:
    rows_node = {"path": str(data / "rows.jsonl")}
    with pytest.raises(ConfigError, match="needs an endless stream"):
        open_recipe({"kind": "skip", "ranges": [], "stream": rows_node})
    with pytest.raises(ConfigError, match="needs a finite source"):
        open_recipe({"kind": "shuffle", "source": {**rows_node, "shuffle": True}})


def test_what_follows_must_be_as_it_says(data: Path) -> None:
    recipe = mix(data).recipe()
    recipe["children"][0]["weight"] = 0.5
    with pytest.raises(ConfigError, match="a different count"):
        open_recipe(recipe)
    with pytest.raises(ConfigError, match="a different version"):
        open_recipe({**ps.Shuffle(rows(data), 1).recipe(), "version": "feistel-0"})
    blocks = ps.Shuffle(rows(data), 1, mode="blocks").recipe()
    with pytest.raises(ConfigError, match="a different blocks"):
        open_recipe({**blocks, "blocks": "00"})


def test_functions_need_trust(data: Path) -> None:
    node = {"kind": "map", "fn": "tests_functions_of_mine:double", "source": {"path": str(data / "rows.jsonl")}}
    with pytest.raises(UnsafeData, match="trust=True"):
        open_recipe(node)
    with pytest.raises(ConfigError, match="unknown function"):
        open_recipe(node, trust=True)
    (data / "tests_functions_of_mine.py").write_text("def double(sample):\n    return {'two': 2}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(data)
        assert open_recipe(node, trust=True)[0] == {"two": 2}
    with pytest.raises(UnsafeData, match="code that is part of the dataset"):
        open_recipe({"kind": "open", "path": str(data / "rows.jsonl"), "trust": True})


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        open_recipe(tmp_path / "none.yaml")
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(FormatError):
        open_recipe(tmp_path / "a.json")
    (tmp_path / "loop.yaml").write_text("path: loop.yaml\n")
    with pytest.raises(ConfigError, match="contains itself"):
        open_recipe(tmp_path / "loop.yaml")


def test_the_schema_is_that_of_the_code() -> None:
    assert read_schema() == recipe_schema() == json.loads(schema_text())
    jsonschema.Draft202012Validator.check_schema(read_schema())


@pytest.mark.parametrize("name", ["key", "kind", "lacks", "both", "type", "range", "enum", "top", "version", "batch"])
def test_the_schema_refuses_too(name: str) -> None:
    assert not VALIDATOR.is_valid(REFUSED[name][0])


LEAVES = st.sampled_from(["books", "web"])


@st.composite
def streams(draw: st.DrawFn, depth: int = 2) -> Callable[[Path], Any]:
    seed = draw(st.none() | st.integers(0, 1 << 40))
    kind = draw(
        st.sampled_from(["shuffle", "sequential", "blend", "skip", "stages"] if depth else ["shuffle", "sequential"])
    )
    if kind in ("shuffle", "sequential"):
        name, size, times = draw(LEAVES), draw(st.integers(4, 60)), draw(st.sampled_from([1, 2, 0.5, 1.25]))
        mode = draw(st.sampled_from(["global", "blocks"]))

        def leaf(folder: Path) -> Any:
            source: Any = ps.Chunk(size)(ps.open(folder / f"{name}.pbin"))
            source = source if times == 1 else ps.Epochs({"x": (source, times)})
            return ps.Sequential(source) if kind == "sequential" else ps.Shuffle(source, seed, mode=mode)

        return leaf
    parts = draw(st.lists(streams(depth - 1), min_size=2, max_size=3))
    numbers = draw(st.lists(st.integers(1, 50), min_size=len(parts), max_size=len(parts)))
    if kind == "skip":
        return lambda folder: ps.Skip(parts[0](folder), [(n, 2 * n) for n in numbers])
    if kind == "stages":
        lengths = [*numbers[1:], None]
        return lambda folder: ps.Stages([(n, part(folder)) for n, part in zip(lengths, parts, strict=True)])
    names = [f"c{place}" for place in range(len(parts))]

    def blend(folder: Path) -> Any:
        # With other positions left out no child is the same stream as another.
        children = {
            name: ps.Skip(part(folder), [(place, place + 1)])
            for place, (name, part) in enumerate(zip(names, parts, strict=True))
        }
        return ps.Blend(children, dict(zip(names, numbers, strict=True)), seed)

    return blend


@settings(max_examples=25, deadline=None)
@given(make=streams())
def test_any_stream_comes_back(make: Callable[[Path], Any], data: Path) -> None:
    stream = make(data)
    recipe = json.loads(json.dumps(stream.recipe()))
    again = open_recipe(recipe)
    assert again.fingerprint == stream.fingerprint
    assert again.recipe() == recipe
    positions = [0, 1, 17, 999]
    assert [again.locate(one) for one in positions] == [stream.locate(one) for one in positions]


def scheduled(data: Path, *stretches: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A blend of windows of two datasets whose weights change."""
    window = {"chunk": {"length": 8, "labels": "shift"}}
    blend = [{"path": str(data / f"{name}.pbin")} for name in ("books", "web")]
    node = {"blend": blend, "window": window, "seed": 5, "schedule": list(stretches), **more}
    return {"batch": {"global_batch": 10}, "stream": node}


FEW = {"length": "3 steps", "weights": {"books": 0.2, "web": 0.8}}
ALONE = {"length": 20, "weights": {"books": 1, "web": 0}}
MOST = {"weights": {"books": "3/4", "web": "1/4"}}


def test_weights_that_change(data: Path) -> None:
    run = open_recipe(scheduled(data, FEW, ALONE, MOST))
    assert run.borders == (30, 50)
    places = [run.locate(position) for position in range(150)]
    drawn = ["books" if "books" in place.path else "web" for place in places]
    counts = [drawn[start:stop].count("books") for start, stop in ((0, 30), (30, 50), (50, 150))]
    assert counts == pytest.approx([6, 20, 75], abs=1)
    # Each child goes on where the stretch before left it: no sample twice before all came.
    for name in ("books", "web"):
        own = [place for place, child in zip(places, drawn, strict=True) if child == name]
        windows = [run[place.position]["tokens"].tolist() for place in own]
        size = len(ps.Chunk(8, labels="shift")(ps.open(data / f"{name}.pbin")))
        first = windows[:size]
        assert len({tuple(window) for window in first}) == len(first)
    assert open_recipe(run.recipe()).fingerprint == run.fingerprint


def test_a_later_stretch_may_be_changed_in_a_run(data: Path) -> None:
    before = ps.Loader(open_recipe(scheduled(data, FEW, MOST)), 10)
    reader = iter(before)
    for _ in range(3):
        next(reader)
    after = ps.Loader(open_recipe(scheduled(data, FEW, ALONE, MOST)), 10)
    after.load_state_dict(before.state_dict())
    assert after.step == 3
    other = ps.Loader(open_recipe(scheduled(data, ALONE, MOST)), 10)
    with pytest.raises(ps.errors.ResumeMismatch):
        other.load_state_dict(before.state_dict())


@pytest.mark.parametrize(
    ("stretches", "more", "said"),
    [
        (({"length": "3 epochs", **MOST}, MOST), {}, "is not a length"),
        (({"length": "0 steps", **MOST}, MOST), {}, "is not a length"),
        (({"length": 0, **MOST}, MOST), {}, "length"),
        (({"length": "9" * 5000 + " steps", **MOST}, MOST), {}, "is not a length"),
        (({"length": "9" * 18 + " steps", **MOST}, MOST), {}, "too long"),
        (({"length": 1 << 63, **MOST}, MOST), {}, "too long"),
        (({"weights": {"books": 1, "web": "1e99999999"}},), {}, "not a number"),
        (({"weights": {"books": 1, "web": "1e-99999999"}},), {}, "not a number"),
        (({"weights": {"books": 1}},), {}, "lacks web"),
        (({"weights": {"books": 1, "web": 1, "wib": 1}},), {}, "is not a child"),
        (({"weights": {"books": 0, "web": 0}},), {}, "all weights are 0"),
        (({"weights": {"books": -1, "web": 1}},), {}, "books"),
        (({"weights": {"books": 1, "web": "much"}},), {}, "not a number"),
        ((MOST,), {"lanes": 2}, "one lane"),
        ((MOST,), {"seed": None}, "needs a seed"),
        ((MOST, MOST), {}, "is endless, but others follow"),
        ((), {}, "schedule"),
    ],
)
def test_a_schedule_that_can_not_be(data: Path, stretches: Any, more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        open_recipe(scheduled(data, *stretches, **more))


def test_weights_stand_in_one_place_and_steps_need_a_batch(data: Path) -> None:
    recipe = scheduled(data, FEW, MOST)
    with pytest.raises(ConfigError, match="no global batch"):
        open_recipe(recipe["stream"])
    recipe["stream"]["blend"][0]["weight"] = 2
    with pytest.raises(ConfigError, match="the children have weights"):
        open_recipe(recipe)
    one = {"path": str(data / "books.pbin"), "shuffle": {"seed": 1}}
    stages = {"batch": 10, "stream": {"stages": [{"length": "2 steps", **one}, one]}}
    assert open_recipe(stages).borders == (20,)
