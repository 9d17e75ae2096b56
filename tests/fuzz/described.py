"""What describes data, fuzzed as data are: recipes, metadatasets, states and tokenizers."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from tests.internals import is_lane_stream, is_stream, load_decoder, load_tokenizer

from penstock.errors import PenstockError
from penstock.formats import create, open_source
from penstock.load import Loader
from penstock.mix import Blend
from penstock.order import Shuffle
from penstock.recipe import open_recipe, traverse_metadataset
from penstock.store import LocalStore

GOLDEN = Path(__file__).parent.parent / "golden"

RECIPES = [
    "blend:\n- {path: a.pbin, weight: 2, window: {chunk: {length: 4}}, shuffle: {seed: 1}}\n"
    "- {path: b.pbin, weight: 1, window: {chunk: {length: 4}}, shuffle: {seed: 2}}\nseed: 3\n",
    "path: a.pbin\nwindow: {chunk: {length: 4, overlap: 1}}\n"
    "shuffle: {seed: 1, lanes: 4, mode: blocks}\nskip: [[0, 2]]\n",
    "concat:\n- {path: a.pbin}\n- {path: b.pbin, subset: {range: ['0%', '50%']}}\nwindow: {whole: {length: 4}}\n",
    "blend_epochized:\n- {path: w, repetitions: 1.5}\n- {path: w2, repetitions: 2}\nshuffle: {seed: 5}\n",
    "join:\n- {path: w}\n- {path: w2, nonmatch: skip}\nsequential: true\n",
    "stages:\n- {length: 8, path: w, shuffle: {seed: 1}}\n- {path: w2, shuffle: {seed: 2}}\n",
    "stream: {path: w, shuffle: {seed: 1}, pack: {window: 4}}\nbatch: {global_batch: 4, micro_batch: 2, world: 2}\n",
]
META = [
    "__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n    - {path: w, weight: 2, subflavors: {a: 1}}\n"
    "    - {path: inner.yaml, weight: 1, split_part: train}\n",
    "splits:\n  train:\n    datasets:\n    - {path: w, weight: 1, subflavor: a}\n    - {path: w2, weight: 3}\n",
    "__class__: MetadatasetV2\nsplits:\n  train:\n    join:\n    - {path: w}\n    - {path: w2, nonmatch: none}\n",
    "__class__: MetadatasetV2\nsplits:\n  train:\n    blend_epochized:\n"
    "    - {path: w, repetitions: 2, subset: {range: [0, 2]}}\n"
    "    - {path: w2, repetitions: 0.5, aux: {x: w}}\n",
]
INNER = "__class__: MetadatasetV2\nsplits:\n  train:\n    path: w2\n    shuffle_over_epochs_multiplier: 3\n"


@functools.cache
def data_files(folder: Path) -> tuple[tuple[str, bytes], ...]:
    """Datasets that recipes name."""
    shutil.rmtree(folder, ignore_errors=True)
    for number, name in enumerate(("a.pbin", "b.pbin")):
        with create(folder / name, format="pbin", eos_id=0, token_bytes=2) as writer:
            for doc in range(9):
                writer.write({"tokens": np.array([*range(1, 2 + doc + number), 0])})
    for number, name in enumerate(("w", "w2")):
        with create(folder / name, format="webdataset", maxcount=4) as writer:
            for sample in range(6):
                writer.write({"__key__": f"k{sample}", "txt": f"{number}"})
    return tuple((str(one.relative_to(folder)), one.read_bytes()) for one in folder.rglob("*") if one.is_file())


def recipe_seeds(folder: Path) -> list[dict[str, bytes]]:
    """Each recipe as a short one, and as it comes back in full."""
    given = dict(data_files(folder))
    seeds = [given | {"set.yaml": text.encode()} for text in RECIPES]
    for text in RECIPES:
        (folder / "set.yaml").write_text(text)
        with contextlib.suppress(PenstockError):
            full = json.dumps(open_recipe(folder / "set.yaml").recipe()).replace(f"{folder}/", "")
            seeds.append(given | {"set.yaml": full.encode()})
    return seeds


def meta_seeds(folder: Path) -> list[dict[str, bytes]]:
    return [dict(data_files(folder)) | {"set.yaml": text.encode(), "inner.yaml": INNER.encode()} for text in META]


def exercise_recipe(path: Path) -> None:
    """Open it, read a little, and give it back."""
    try:
        made: Any = open_recipe(path)
        _ = made.fingerprint, str(made), made.recipe()
        if is_lane_stream(made):
            return
        if is_stream(made):
            made.get_batch(np.array([0, 1, 5]))
            made.locate(10**12)
        elif len(made):
            made.get_batch([0, len(made) - 1])
    except PenstockError as error:
        if not str(error):
            raise AssertionError("an error without a message") from error


def exercise_metadataset(path: Path) -> None:
    """The same, and its datasets as data."""
    with contextlib.suppress(PenstockError):
        traverse_metadataset(path)
    exercise_recipe(path)


# --- states --------------------------------------------------------------------------------------------------------


@functools.cache
def _stream(folder: Path) -> Any:
    data_files(folder)
    children = {name: Shuffle(open_source(folder / f"{name}.pbin"), seed=1) for name in ("a", "b")}
    return Blend(children, {"a": 2, "b": 1}, seed=3)


def state_seeds(folder: Path) -> list[dict[str, bytes]]:
    seeds: list[dict[str, bytes]] = []
    for steps in (0, 3):
        loader = Loader(_stream(folder), global_batch=4, rank=0, world=1, workers=1)
        for _, _batch in zip(range(steps), loader, strict=False):
            pass
        seeds.append({"state.json": json.dumps(loader.state_dict()).encode()})
    return seeds


def exercise_state(path: Path, folder: Path) -> None:
    """Load it, and take the next batch."""
    try:
        state = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return
    with contextlib.suppress(PenstockError):
        one = Loader(_stream(folder), global_batch=4, rank=0, world=1, workers=1)
        one.load_state_dict(copy.deepcopy(state))
        next(iter(one))
        one.state_dict()


# --- tokenizers ----------------------------------------------------------------------------------------------------


def tokenizer_seeds(folder: Path) -> list[dict[str, bytes]]:
    seeds: list[dict[str, bytes]] = []
    for one in sorted(GOLDEN.glob("modalities/tokenizers/*/tokenizer.json")):
        value = json.loads(one.read_bytes())
        vocab = value["model"]["vocab"]
        if isinstance(vocab, dict):  # a short one: cases are many
            value["model"]["vocab"] = dict(sorted(vocab.items(), key=lambda item: item[1])[:300])
            if "merges" in value["model"]:
                value["model"]["merges"] = []
        config = one.with_name("tokenizer_config.json")
        more = {"tokenizer_config.json": config.read_bytes()} if config.exists() else {}
        seeds.append({"tokenizer.json": json.dumps(value).encode(), **more})
    return seeds


def exercise_tokenizer(path: Path) -> None:
    """Load it, encode and decode."""
    for special in (False, True):
        with contextlib.suppress(PenstockError):
            spec, reference = load_tokenizer(path.parent, LocalStore(), eos="a", special_tokens=special)
            reference.encode([b"a b", "é😀".encode()])
            if not 0 <= spec.eos_id <= spec.max_token_id:
                raise AssertionError("an EOS beyond the vocabulary")
    with contextlib.suppress(PenstockError):
        load_decoder(path)([0, 1])
