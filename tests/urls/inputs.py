"""The inputs of the cells: a few kilobytes of each format, made once."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import zstandard
from tests.internals import build_index
from tests.urls.cases import TOKENIZER

import penstock as ps
from penstock.prepare import pack

GOLDEN = Path(__file__).parent.parent / "golden"
DOCS = [[*range(1, size), 0] for size in (2, 3, 5, 4, 6, 2, 7, 3)]
TOKENS = {"a.pbin": "pbin", "a.zarr": "flat-tokens", "mega/a.bin": "megatron"}
SHARDS = ("mds", "csv", "tsv", "json-shards")


def make_inputs(folder: Path) -> None:
    """Fill a folder: `a.*` and `b.*` of one format can be merged."""
    folder.mkdir(parents=True)
    for name in ("a", "b"):
        lines = [json.dumps({"text": f"{name} text {number}", "n": number}) + "\n" for number in range(8)]
        (folder / f"{name}.jsonl").write_text("".join(lines))
        for path, format in TOKENS.items():
            _write_tokens(folder / path.replace("a.", f"{name}."), format)
        _write_planes(folder / "planes" / f"{name}.pbin")
        for format in SHARDS:
            columns = {"n": "int", "text": "str"}
            with ps.create(folder / f"{name}.{format}", format=format, columns=columns, size_limit=80) as writer:
                for number in range(8):
                    writer.write({"n": number, "text": f"{name} text {number}"})
        _write_tars(folder / f"{name}.tars", name)
        how = {"tokenizer": TOKENIZER, "file_tokens": 40, "executor": "inline"}
        pack([folder / f"{name}.jsonl"], folder / f"{name}.files", **how)
    shutil.copy(folder / "a.jsonl", folder / "c.jsonl")
    for name in ("a", "b"):
        build_index(folder / f"{name}.jsonl")
    for path, listed in (("a.pbin", "gone"), ("a.mds", "gone.mds")):
        ps.exclude(folder / path, indices=[1], reason="asked", list=folder / f"{listed}.exclude.jsonl")
    _write_many(folder / "a.many", (folder / "a.jsonl").read_bytes().splitlines(keepends=True))
    _write_samples(folder)
    _copy_golden(folder)
    _break(folder, folder / "broken")


def _write_tokens(path: Path, format: str) -> None:
    path.parent.mkdir(exist_ok=True)
    options = {} if format == "flat-tokens" else {"token_bytes": 2}
    with ps.create(path, format=format, eos_id=0, **options) as writer:
        for doc in DOCS:
            writer.write({"tokens": np.array(doc)})


def _write_planes(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    planes = {"loss_mask": "bool", "weight": "float32"}
    with ps.create(path, format="pbin", eos_id=0, token_bytes=2, planes=planes) as writer:
        for doc in DOCS:
            writer.write({"tokens": np.array(doc), "loss_mask": np.array(doc) % 2 == 0, "weight": np.array(doc) / 4})


def _write_many(folder: Path, lines: list[bytes]) -> None:
    (folder / "sub").mkdir(parents=True)
    (folder / "b.jsonl").write_bytes(b"".join(lines[:3]))
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[3:5]), mtime=0))
    (folder / "sub" / "a.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(b"".join(lines[5:])))


def _write_tars(folder: Path, name: str) -> None:
    with ps.create(folder, format="webdataset", maxcount=3) as writer:
        for number in range(8):
            writer.write({"__key__": f"{name}{number}", "txt": f"text {number}", "json": {"n": number}})
    bare = folder.with_suffix(".bare")
    bare.mkdir()
    for tar in folder.glob("*.tar"):
        shutil.copy(tar, bare / tar.name)


def _write_samples(folder: Path) -> None:
    with ps.create(folder / "a.folder", format="folder") as writer:
        for number in range(4):
            writer.write({"__key__": f"sub/k{number}", "txt": f"text {number}"})
    (folder / "media").mkdir()
    for number in range(2):
        (folder / "media" / f"p{number}.png").write_bytes(_png(number + 1))
    (folder / "keep.txt").write_text("0\n3\n4\n")
    (folder / "a.yaml").write_text("penstock: 1\nstream: {path: a.pbin, window: {chunk: {length: 4}}}\n")
    loader = ps.Loader(ps.open_recipe(folder / "a.yaml"), 2, tail="pad")
    (folder / "state.json").write_text(json.dumps(loader.state_dict()))
    loader.close()


def _break(folder: Path, broken: Path) -> None:
    """Copies with the damage that `repair` mends."""
    for name in ("a.mds", "a.tars", "a.zarr", "mega", "a.files"):
        shutil.copytree(folder / name, broken / name)
    for name in ("a.jsonl", "a.pbin"):
        shutil.copy(folder / name, broken / name)
    for name in ("a.mds", "a.files"):
        (broken / name / "index.json").unlink()
    next((broken / "a.tars").glob("*.tar.idx")).unlink()
    (broken / "a.zarr" / ".zattrs").write_text('{"max_token_id": 1}')
    shutil.rmtree(broken / "a.zarr" / "seq_starts")
    index = broken / "mega" / "a.idx"
    index.write_bytes(index.read_bytes()[:-9])
    (broken / "a.idx").write_bytes((folder / "a.idx").read_bytes()[:-9])
    (broken / "a.pbin").write_bytes(bytes(8) + (folder / "a.pbin").read_bytes()[8:])


def _png(width: int) -> bytes:
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (width, 2)).save(file, "png")
    return file.getvalue()


def _copy_golden(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in (GOLDEN / "datatrove").glob("seed_2byte.ds*"):
        shutil.copy(path, folder / path.name.replace("seed_2byte", "a"))
    shutil.copytree(GOLDEN / "litdata" / "tokens-int32", folder / "a.litdata", copy_function=shutil.copyfile)
    shutil.copytree(GOLDEN / "levanter" / "tokens", folder / "a.levanter", copy_function=shutil.copyfile)
    shutil.copy(GOLDEN / "raw-tokens" / "nanogpt" / "val.bin", folder / "raw.bin")
    shutil.copytree(GOLDEN / "hf", folder / "a.hf", copy_function=shutil.copyfile)
    (folder / "tables").mkdir()
    for path in ("a.parquet", "tables/0.parquet", "tables/1.parquet"):
        pq.write_table(pa.table({"n": [1, 2, 3], "text": ["a", "b", "c"]}), folder / path)
    (folder / "table.csv").write_text("n,text\n1,a\n2,b\n")
