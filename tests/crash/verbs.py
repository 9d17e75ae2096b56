"""Every verb of the command line on small data: what `each_fault` runs with one call that fails."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cases
import inputs
from tests import internals

import penstock

GOLDEN = Path(__file__).parent.parent / "golden"
Setup = Callable[[Path], object]


@dataclass(frozen=True)
class Verb:
    """One run of `penstock`, in a folder of its own.

    Attributes:
        arguments: as on a command line; paths relative to the folder.
        setup: makes the inputs.
        finds: whether the verb may end with 1 for what it finds.
        slow: whether it takes seconds.
        same: whether what it prints is the same every time.
    """

    arguments: tuple[str, ...]
    setup: Setup
    finds: bool = False
    same: bool = True
    slow: bool = False

    @property
    def name(self) -> str:
        """For reports."""
        return " ".join(self.arguments)


def golden(*names: str) -> Setup:
    """Copies of golden files and folders."""

    def setup(folder: Path) -> None:
        for name in names:
            source, target = GOLDEN / name, folder / Path(name).name
            if source.is_dir():
                shutil.copytree(source, target)
            else:
                shutil.copyfile(source, target)

    return setup


def prepared_tars(folder: Path) -> None:
    """A prepared WebDataset."""
    cases.write_tars(folder)
    cases.prepared()(folder, False)


def prepared_gifs(folder: Path) -> None:
    """A prepared WebDataset of pictures."""
    cases.write_media(folder)
    pictures = sorted((folder / "media").rglob("*.gif"))
    with penstock.create(folder / "set", format="webdataset") as writer:
        for number, path in enumerate(pictures):
            writer.write({"__key__": f"k{number}", "gif": path.read_bytes()})


def prepared_media(folder: Path) -> None:
    """A folder of media with its index."""
    cases.write_media(folder)
    cases.prepare_media_of(folder, False)


def with_recipe(folder: Path) -> None:
    """Packed tokens and a recipe over them."""
    cases.two_pbin(folder)
    recipe = {
        "penstock": 1,
        "batch": {"global_batch": 2},
        "stream": {"path": "a.pbin", "window": {"chunk": {"length": 16}}, "shuffle": {"seed": 5}},
    }
    (folder / "recipe.yaml").write_text(json.dumps(recipe))


def with_splits(folder: Path) -> None:
    """A flat-tokens group."""
    cases.tokens("in.zarr", format="flat-tokens", split="train")(folder, False)


def with_both_splits(folder: Path) -> None:
    """A flat-tokens dataset of two splits."""
    for split in ("train", "validation"):
        cases.tokens("in.zarr", format="flat-tokens", split=split)(folder, False)


def pair(folder: Path) -> None:
    """A pair of Megatron's."""
    cases.tokens("in", format="megatron")(folder, False)


def with_list(folder: Path) -> None:
    """A file of tokens with an exclude list."""
    cases.two_pbin(folder)
    importlib.import_module("penstock").exclude(folder / "a.pbin", indices=[1], reason="asked")


def left_over(folder: Path) -> None:
    """A folder of token files, and what a straggler put there."""
    cases.write_pack_inputs(folder)
    cases.packed_files("out", "pbin")(folder, False)
    (folder / "out/part-00099-01234567.pbin").write_bytes(b"of another plan")


def table(folder: Path) -> None:
    """A Parquet file."""
    arrow: Any = importlib.import_module("pyarrow")
    texts = arrow.table({"text": [text * 20 for text in cases.TEXTS if text]})
    importlib.import_module("pyarrow.parquet").write_table(texts, folder / "in.parquet")


def one_jsonl(folder: Path) -> None:
    """A JSONL file with its index."""
    cases.lines("a.jsonl")(folder, False)


def instructions(folder: Path) -> None:
    """A configuration of Modalities' packing."""
    cases.write_pack_inputs(folder)
    internals.build_index(folder / "b.jsonl")


def verb(arguments: str, setup: Setup, **options: Any) -> Verb:
    """A run by its command line."""
    return Verb(tuple(arguments.split()), setup, **options)


PACK = "pack a.jsonl.gz b.jsonl --tokenizer tokenizer.json --executor inline --engine tokenizers --eos " + inputs.EOS

VERBS = [
    verb("demo out --max-mb 0.1", cases.nothing, same=False, slow=True),
    verb("index a.jsonl", cases.many_lines("a.jsonl", 40)),
    verb("index a.jsonl --flavor energon", cases.many_lines("a.jsonl", 40)),
    *(
        verb(f"{PACK} -o {output}", cases.write_pack_inputs)
        for output in ("out.pbin", "out.zarr", "out --to megatron", "out --to mds", "out/ --file-tokens 1500")
    ),
    verb(PACK.replace("a.jsonl.gz b.jsonl", "in.parquet") + " -o out.pbin", cases.both(table, cases.write_pack_inputs)),
    verb("convert a.pbin out.pbin", cases.two_pbin),
    verb("convert a.pbin out.zarr --split train", cases.two_pbin),
    verb("convert a.pbin out --to megatron", cases.two_pbin),
    verb("convert a.jsonl out --to mds --workers 1", cases.two_jsonl),
    verb("convert a out.jsonl", cases.two_mds),
    verb("convert a.pbin b.pbin --overwrite", cases.two_pbin),
    verb("info a.pbin", cases.two_pbin),
    verb("status a.pbin", cases.two_pbin),
    verb("status out --sweep", left_over),
    verb("stage a.pbin --hosts 1 --host 0", cases.two_pbin),
    verb("info a.jsonl", one_jsonl),
    verb("info set", prepared_tars),
    verb("info a", cases.two_mds),
    verb("info in.zarr", with_splits),
    verb("info in", pair),
    verb("info media", prepared_media),
    verb("info in.parquet", table),
    verb("find a.jsonl --where len(text)>0 --limit 3", one_jsonl),
    verb("find a --where len(text)>0", cases.two_mds),
    verb("diff a.pbin a.pbin", cases.two_pbin, finds=True),
    verb("report a.pbin -o out.html", cases.two_pbin),
    verb("report recipe.yaml -o out.html", with_recipe),
    verb("diff a.jsonl a.jsonl --as set", one_jsonl, finds=True),
    verb("lineage a.pbin", cases.two_pbin),
    verb("exclude a.jsonl --where len(text)>0 --reason asked", one_jsonl, same=False),
    verb("purge a.pbin -o out.pbin", with_list, same=False),
    verb("merge a.pbin -o out.pbin --keep-excluded --keep-map", with_list),
    verb("head a.pbin", cases.two_pbin),
    verb("head a.jsonl", one_jsonl),
    verb("head set", prepared_tars),
    verb("head a", cases.two_mds),
    verb("head in.zarr", with_splits),
    verb("head in", pair),
    verb("head media", prepared_media),
    verb("head in.parquet", table),
    *(
        verb(f"verify {name} --depth full", setup, finds=True)
        for name, setup in (
            ("a.pbin", cases.two_pbin),
            ("a.jsonl", one_jsonl),
            ("set", prepared_tars),
            ("a", cases.two_mds),
            ("in.zarr", with_both_splits),
            ("in", pair),
            ("media", prepared_media),
        )
    ),
    verb(
        "verify docs.bpe2.pbin --write-manifest",
        golden("modalities/pbin/docs.bpe2.pbin"),
        finds=True,
    ),
    verb("repair out.pbin --write", lambda folder: (folder / "out.pbin").write_bytes(cases.MERGED_PBIN)),
    verb("repair set --write", cases.broken_tars),
    verb("repair a.jsonl --write", cases.broken_index("a.jsonl", "a.idx")),
    verb("repair set --format mds --write", cases.write_broken_index),
    verb("merge a.pbin b.pbin -o out.pbin", cases.two_pbin),
    verb("merge a.jsonl b.jsonl -o out.jsonl", cases.two_jsonl),
    verb("merge a b -o out", cases.two_mds),
    verb("shuffle a.pbin -o out.pbin --seed 7", cases.two_pbin),
    verb("shuffle a.jsonl -o out.jsonl --seed 7", cases.two_jsonl),
    verb("split a.pbin -o parts --ratio 2,1 --seed 3", cases.two_pbin),
    verb("split a.jsonl -o parts --ratio 2,1 --seed 3", cases.two_jsonl),
    verb("filter a.pbin -o out.pbin --min-tokens 10", cases.two_pbin),
    verb("filter a.jsonl -o out.jsonl --match .", cases.two_jsonl),
    verb("filter a.jsonl -o out.jsonl --match . --workers 2", cases.two_jsonl),
    verb("shuffle a.pbin -o out.pbin --seed 7 --workers 2", cases.two_pbin),
    verb("verify a --work marks --part 0/2", cases.two_mds),
    verb("split a.pbin -o out.pbin --parts 2 --only 0", cases.two_pbin),
    verb("prepare set --split-ratio 1,0,0 --sample-type CrudeWebdataset", cases.write_tars),
    verb("prepare a.jsonl", cases.many_lines("a.jsonl", 40)),
    verb("prepare-media media", cases.write_media),
    verb("prepare-media set --media-by-glob *.gif", prepared_gifs),
    verb("prepare-media media --media-by-header", prepared_media),
    verb("verify set --depth decode", prepared_tars, finds=True),
    verb("energon lint a.jsonl", one_jsonl, finds=True),
    verb("energon preview set -n 2 --no-pictures", prepared_tars),
    verb("plan recipe.yaml", with_recipe),
    verb("explain recipe.yaml --step 1", with_recipe),
    verb("modalities data create_raw_index b.jsonl", cases.write_pack_inputs),
    verb("modalities data merge_packed_data a.pbin b.pbin out.pbin", cases.two_pbin),
    verb(
        "modalities data shuffle_tokenized_data --input_data_path a.pbin --output_data_path out.pbin --seed 1",
        cases.two_pbin,
    ),
    verb("energon info set", prepared_tars),
    verb("energon lint set", prepared_tars, finds=True),
]
