"""The inputs of the cases: a folder for each format, with small datasets of the same names.

`a` and `b` can be merged; `x` and `y` are the same with exclude lists; `one` has one sample and `none` has none.
"""

from __future__ import annotations

import gzip
import json
import random
import shutil
import struct
import wave
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

import penstock as ps
from penstock.testing.token_files import write_token_files

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden"
Row = dict[str, Any]
COUNTS = {"a": 23, "b": 17, "x": 23, "y": 17, "one": 1, "none": 0}
EXCLUDED = {"x": (1, 7, 20), "y": (0, 16)}
COLUMNS = {"id": "int", "n": "int", "text": "str"}
PLANES = {"loss_mask": "bool", "weight": "float32"}


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the datasets of a format are, and how they are read and written.

    Attributes:
        path: of a dataset, with `{}` for its name.
        out: path of an output, with the options that it needs.
        kind: rows have fields, documents have tokens, and samples have parts.
        read: options to open a dataset.
        names: datasets that exist.
    """

    path: str
    out: str
    kind: Literal["rows", "documents", "samples"]
    read: str = ""
    names: tuple[str, ...] = tuple(COUNTS)

    def source(self, *names: str) -> str:
        """Return the datasets as arguments of a command."""
        return " ".join([*map(self.path.format, names), self.read]).strip()


_ALONE = ("a",)
_NO_BORDERS = str.maketrans("\n\t,|", "/;;;")
"""Rows of CSV and its kin can't hold them."""
LAYOUTS = {
    "jsonl": Layout("jsonl/{}.jsonl", "x.jsonl", "rows"),
    "jsonl-gz": Layout("jsonl-gz/{}.jsonl.gz", "x.jsonl", "rows"),
    "jsonl-files": Layout("jsonl-files/{}", "x.jsonl", "rows"),
    "parquet": Layout("parquet/{}.parquet", "x.jsonl", "rows"),
    "hf": Layout("hf/{} --split train", "x.jsonl", "rows", names=_ALONE),
    "mds": Layout("mds/{}", "x", "rows"),
    "csv": Layout("csv/{}", "x", "rows"),
    "tsv": Layout("tsv/{}", "x", "rows"),
    "xsv": Layout("xsv/{}", "x", "rows"),
    "json-shards": Layout("json-shards/{}", "x", "rows"),
    "pbin": Layout("pbin/{}.pbin", "x.pbin", "documents"),
    "pbin with planes": Layout("pbin-planes/{}.pbin", "x.pbin", "documents"),
    "megatron": Layout("megatron/{}.bin", "x.bin", "documents"),
    "megatron with planes": Layout("megatron-planes/{}.bin", "x.bin", "documents"),
    "flat-tokens": Layout("flat-tokens/{}.zarr", "x.zarr", "documents"),
    "flat-tokens with planes": Layout("flat-tokens-planes/{}.zarr", "x.zarr", "documents"),
    "token-files": Layout("token-files/{}", "x.pbin", "documents"),
    "raw-tokens": Layout("raw-tokens/{}.bin", "x.pbin", "documents", "--format raw-tokens --layout uint16 --eos-id 0"),
    "datatrove": Layout("datatrove/{}.ds", "x.pbin", "documents", "--layout uint16"),
    "litdata": Layout("litdata/{}", "x.pbin", "documents", names=_ALONE),
    "levanter": Layout("levanter/{}", "x.pbin", "documents", names=_ALONE),
    "webdataset": Layout("webdataset/{}", "x", "samples"),
    "folder": Layout("folder/{}", "x", "samples"),
}


def rows_of(name: str) -> list[Row]:
    """Return rows with fields of several types; `b` and `y` have empty texts and control characters."""
    rng = random.Random(COUNTS[name])
    is_odd = name in ("b", "y")
    words = [
        "sun",
        "mörder",
        "rain on the hill",
        "🙂",
        'a "quoted" text',
        *(["", "two\nlines", "a\ttab"] if is_odd else []),
    ]
    return [
        {"id": n + 100 * is_odd, "n": rng.randrange(7), "text": " ".join(rng.choices(words, k=1 + rng.randrange(3)))}
        for n in range(COUNTS[name])
    ]


def documents_of(name: str) -> list[list[int]]:
    """Return documents of 1 to 9 tokens with EOS at the end."""
    rng = random.Random(COUNTS[name] + 1)
    return [[*rng.choices(range(1, 1000), k=rng.randrange(9)), 0] for _ in range(COUNTS[name])]


def make_inputs(folder: Path) -> None:
    """Fill a new folder."""
    for name in COUNTS:
        for format, layout in LAYOUTS.items():
            if name in layout.names:
                path = folder / layout.path.partition(" ")[0].format(name)
                path.parent.mkdir(parents=True, exist_ok=True)
                _MAKERS[format](path, name)
                if name in EXCLUDED:
                    options = _opened(layout.read)
                    ps.exclude(path, indices=EXCLUDED[name], reason="asked", who="corpus", **options)
    _make_others(folder)


def _opened(read: str) -> dict[str, Any]:
    words = read.replace("--", "").replace("-", "_").split()
    found: dict[str, Any] = dict(zip(words[::2], words[1::2], strict=True))
    return {key: int(one) if key == "eos_id" else one.replace("_", "-") for key, one in found.items()}


def _lines(rows: Iterable[Row]) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=row["id"] % 2 == 0).encode() + b"\n" for row in rows)


def _zip(path: Path, data: bytes) -> None:
    path.write_bytes(gzip.compress(data, 0, mtime=0))  # not compressed: the same bytes with every zlib


def _jsonl_files(folder: Path, name: str) -> None:
    rows = rows_of(name)
    (folder / "sub").mkdir(parents=True)
    (folder / "b.jsonl").write_bytes(_lines(rows[:9]))
    _zip(folder / "c.jsonl.gz", _lines(rows[9:11]))
    (folder / "sub" / "a.jsonl").write_bytes(_lines(rows[11:]))


def _create(format: str, **options: Any) -> Callable[[Path, str], None]:
    def make(path: Path, name: str) -> None:
        with ps.create(path, format=format, **options) as writer:
            for number, tokens in enumerate(documents_of(name)):
                planes = {"loss_mask": np.array(tokens) % 2 == 0, "weight": np.array(tokens, "f4") / 4 + number}
                chosen = planes if "planes" in options else {}
                writer.write({"tokens": np.array(tokens), **chosen})

    return make


def _rows(format: str, **options: Any) -> Callable[[Path, str], None]:
    def make(path: Path, name: str) -> None:
        with ps.create(path, format=format, columns=COLUMNS, size_limit=260, **options) as writer:
            for row in rows_of(name):
                text = row["text"] if format in ("mds", "json-shards") else row["text"].translate(_NO_BORDERS)
                writer.write({**row, "text": text})

    return make


def _samples(format: str, **options: Any) -> Callable[[Path, str], None]:
    def make(path: Path, name: str) -> None:
        with ps.create(path, format=format, **options) as writer:
            for row in rows_of(name):
                more = {"json": {"n": row["n"]}} if format == "webdataset" else {}
                writer.write(
                    {"__key__": f"sub/{'b' if name in ('b', 'y') else 'a'}{row['id']}", "txt": row["text"], **more}
                )

    return make


def _raw(path: Path, name: str) -> None:
    np.array([token for one in documents_of(name) for token in one], "<u2").tofile(path)


def _datatrove(path: Path, name: str) -> None:
    _raw(path, name)
    np.cumsum([len(one) for one in documents_of(name)]).astype("<u8").tofile(f"{path}.index")


def _token_files(path: Path, name: str) -> None:
    documents = documents_of(name)
    parts = [documents[:5], documents[5:6], documents[6:]] if len(documents) > 1 else [documents]
    write_token_files(path, parts, options={"eos_id": 0})


def _golden(place: str) -> Callable[[Path, str], None]:
    return lambda path, _: _copy(GOLDEN / place, path)


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, copy_function=shutil.copyfile)


_MAKERS: dict[str, Callable[[Path, str], Any]] = {
    "jsonl": lambda path, name: path.write_bytes(_lines(rows_of(name))),
    "jsonl-gz": lambda path, name: _zip(path, _lines(rows_of(name))),
    "jsonl-files": _jsonl_files,
    "parquet": lambda path, name: shutil.copyfile(HERE / "tables" / f"{COUNTS[name]}.parquet", path),
    "hf": _golden("hf"),
    **{format: _rows(format) for format in ("mds", "csv", "tsv", "json-shards")},
    "xsv": _rows("xsv", separator="|"),
    "pbin": _create("pbin", eos_id=0, token_bytes=2),
    "pbin with planes": _create("pbin", eos_id=0, token_bytes=2, planes=PLANES),
    "megatron": _create("megatron", eos_id=0, token_bytes=2),
    "megatron with planes": _create("megatron", eos_id=0, token_bytes=2, planes=PLANES),
    "flat-tokens": _create("flat-tokens", eos_id=0, chunk_tokens=64, chunk_starts=16),
    "flat-tokens with planes": _create("flat-tokens", eos_id=0, chunk_tokens=64, chunk_starts=16, planes=PLANES),
    "token-files": _token_files,
    "raw-tokens": _raw,
    "datatrove": _datatrove,
    "litdata": _golden("litdata/tokens-int32"),
    "levanter": _golden("levanter/tokens"),
    "webdataset": _samples("webdataset", maxcount=5),
    "folder": _samples("folder"),
}


def _make_others(folder: Path) -> None:
    _copy(GOLDEN / "modalities" / "tokenizers" / "bpe2", folder / "tokenizer" / "bpe2")
    lists = folder / "lists"
    lists.mkdir()
    (lists / "keep.txt").write_text("0\n22\n4\n3\n")
    np.save(lists / "index.npy", np.array([5, 1, 16]))
    (folder / "text").mkdir()
    (folder / "text" / "a.txt").write_text("one\ntwo\n\nthree")
    (folder / "media" / "a").mkdir(parents=True)
    for number in (1, 2, 3):
        (folder / "media" / "a" / f"p{number}.png").write_bytes(_png(number))
        with wave.open(str(folder / "media" / "a" / f"w{number}.wav"), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(bytes(80 * number))
    bare = folder / "tars" / "a"
    bare.mkdir(parents=True)
    for tar in sorted((folder / "webdataset" / "a").glob("*.tar")):
        shutil.copyfile(tar, bare / tar.name)
    for name, dataset, pattern, action, number in DAMAGES:
        source, target = folder / dataset, folder / "broken" / name.replace(" ", "-")
        target.mkdir(parents=True)
        for one in source.parent.iterdir():
            if one.name.partition(".")[0] == "a":
                (_copy if one.is_dir() else shutil.copyfile)(one, target / one.name)
        [path] = target.glob(pattern)
        _damage(path, action, number)


def _png(width: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, 2, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(2 * width + 2), 0)) + chunk(b"IEND", b"")


DAMAGES: list[tuple[str, str, str, Literal["flip", "cut", "zero", "remove", "add"], int]] = [
    *((f"pbin byte {at}", "pbin/a.pbin", "a.pbin", "flip", at) for at in (0, 9, 15, 200, -1)),
    *((f"pbin cut {size}", "pbin/a.pbin", "a.pbin", "cut", size) for size in (9, 150, 300)),
    ("pbin unfinished", "pbin/a.pbin", "a.pbin", "zero", 8),
    ("pbin side file", "pbin/a.pbin", "a.pbin.penstock", "flip", 120),
    ("pbin planes", "pbin-planes/a.pbin", "a.pbin.*weight*", "cut", 3),
    ("jsonl line", "jsonl/a.jsonl", "a.jsonl", "flip", 0),
    ("jsonl end", "jsonl/a.jsonl", "a.jsonl", "cut", 4),
    ("jsonl more", "jsonl/a.jsonl", "a.jsonl", "add", 0),
    *((f"megatron {name} byte {at}", "megatron/a.bin", f"a.{name}", "flip", at)
      for name in ("bin", "idx") for at in (2, 40)),
    ("megatron idx cut", "megatron/a.bin", "a.idx", "cut", 9),
    ("megatron bin gone", "megatron/a.bin", "a.bin", "remove", 0),
    ("megatron idx gone", "megatron/a.bin", "a.idx", "remove", 0),
    ("zarr token", "flat-tokens/a.zarr", "a.zarr/encoded_tokens/0", "flip", 5),
    ("zarr starts gone", "flat-tokens/a.zarr", "a.zarr/seq_starts/0", "remove", 0),
    ("zarr attributes", "flat-tokens/a.zarr", "a.zarr/.zattrs", "flip", 9),
    *((f"{kind} {action} {number}", f"{kind}/a", f"a/shard.00001.{kind}", action, number)
      for kind in ("mds", "csv") for action, number in (("flip", -3), ("cut", 3), ("remove", 0))),
    *((f"{kind} index", f"{kind}/a", "a/index.json", "remove", 0) for kind in ("mds", "csv", "token-files")),
    *((f"tars {action} {number}", "webdataset/a", "a/shard_000001.tar", action, number)
      for action, number in (("flip", 600), ("flip", 1030), ("cut", 1100), ("remove", 0))),
    ("tars idx", "webdataset/a", "a/shard_000001.tar.idx", "remove", 0),
    ("tars sqlite", "webdataset/a", "a/.nv-meta/index.sqlite", "cut", 100),
    ("tars split", "webdataset/a", "a/.nv-meta/split.yaml", "remove", 0),
    ("folder", "folder/a", "a/sub/a3.txt", "flip", 0),
    ("token-files byte", "token-files/a", "a/part-00001*.pbin", "flip", 9),
    ("token-files file", "token-files/a", "a/part-00001*.pbin", "remove", 0),
    ("raw-tokens", "raw-tokens/a.bin", "a.bin", "cut", 1),
    ("datatrove", "datatrove/a.ds", "a.ds.index", "cut", 8),
    ("parquet", "parquet/a.parquet", "a.parquet", "flip", 60),
]  # fmt: skip
"""Name, dataset, file of it, and what is done to that: which byte is flipped, or how many are cut off or zeroed."""


def _damage(path: Path, action: str, number: int) -> None:
    data = bytearray(path.read_bytes())
    if action == "remove":
        path.unlink()
        return
    if action == "flip":
        data[number] ^= 0x41
    elif action == "cut":
        del data[-number:]
    elif action == "zero":
        data[:number] = bytes(number)
    else:
        data += b"{]\n"
    path.write_bytes(data)
