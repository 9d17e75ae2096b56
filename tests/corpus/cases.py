"""The cases: commands, what they work on, and the ways in which they run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tests.corpus.inputs import LAYOUTS, Layout
from tests.corpus.sequences import sequences

Way = Literal["workers", "parts", "killed"]
ALL: tuple[Way, ...] = ("workers", "parts", "killed")
_WAYS: dict[str, tuple[Way, ...]] = {"verify": ("workers",)}
LIFTABLE = (
    (
        "parts",
        "rows can't be tracked|doesn't keep row numbers|can't be copied with their entries here",
        "no row numbers",
    ),
    ("parts", "needs random access to rows", "shuffle by parts of formats without random access"),
    ("parts", "jsonl is written by a single process", "JSONL is converted to in one process"),
    ("parts", "a dry run always covers the whole job", "a dry run of a part"),
)
"""Ways, pattern of their result, and why. Later engines may do better; the result must then be the inline one."""


@dataclass(frozen=True, slots=True)
class Case:
    """Commands that run one after the other in one folder.

    Attributes:
        verb: and golden file.
        name: of the case.
        lines: of the commands; paths are relative to the folder. The last one is that which the ways are about.
        ways: other than in one process.
        remote: whether it works on a bucket.
    """

    verb: str
    name: str
    lines: tuple[str, ...]
    ways: tuple[Way, ...] = ()
    remote: bool = False

    def lines_of(self, way: Way, num_parts: int) -> list[str]:
        """Return the commands of a way."""
        *before, last = self.lines
        if way == "workers":
            return [*before, f"{last.replace(' --executor inline', '')} --workers 2"]
        parts = [f"{last} --part {part}/{num_parts}" for part in (2, 0, 1)]
        return [*before, *parts, f"{last} --finish"]


def may_be_lifted(way: str, result: object) -> bool:
    """Return whether a later engine may do better than this result of a way, such as a refusal."""
    told = json.dumps(result, ensure_ascii=False)
    return any(way in ways.split() and re.search(pattern, told) for ways, pattern, _ in LIFTABLE)


VARIANTS = {
    "plain": ("a", ""), "keep-map": ("a", "--keep-map"),
    "excluded": ("x", ""), "excluded, keep-map": ("x", "--keep-map"),
    "kept": ("x", "--keep-excluded"), "kept, keep-map": ("x", "--keep-excluded --keep-map"),
}  # fmt: skip
ALIKE = {
    *("jsonl-gz", "hf", "csv", "tsv", "xsv", "json-shards", "folder", "datatrove", "raw-tokens", "litdata", "levanter"),
    *("megatron", "megatron with planes", "flat-tokens with planes"),
}
"""Formats that share their code with others, or are only read: fewer cases."""
CONDITIONS = {"rows": "--where 'n > 2'", "documents": "--min-tokens 4", "samples": "--indices lists/keep.txt"}
IN_ROWS = "--size-limit 260 --group-rows 4"
"""Several shards and several tasks."""
TARGETS = {
    "rows": {
        "jsonl": "out/x.jsonl --group-rows 4",
        **{to: f"out/x --to {to} {IN_ROWS}" for to in ("mds", "csv", "tsv", "json-shards")},
        "xsv": f"out/x --to xsv -O separator=| {IN_ROWS}",
        "webdataset": "out/x --to webdataset -O maxcount=5 --group-rows 4",
    },
    "documents": {
        "pbin": "out/x.pbin", "megatron": "out/x --to megatron", "flat-tokens": "out/x.zarr -O chunk_tokens=64",
        "flat-tokens split": "out/x.zarr --split train", "token-files": "out/x/ --file-tokens 20",
        "jsonl": "out/x.jsonl", "wider pbin": "out/x.pbin --token-bytes 4",
        "pbin without EOS": "out/x.pbin --eos strip 0",
    },
    "samples": {
        "webdataset": "out/x --to webdataset -O maxcount=5 --group-rows 4",
        "folder": "out/x --to folder --group-rows 4",
        "mds": f"out/x --to mds {IN_ROWS}", "jsonl": "out/x.jsonl --group-rows 4",
    },
}  # fmt: skip
PACKED = {
    "pbin": "x.pbin", "flat-tokens": "x.zarr", "megatron": "x.bin", "mds": "x --to mds",
    "token-files": "x/ --file-tokens 200", "token-files of megatron": "x/ --file-tokens 200 --to megatron",
    "token-files of flat-tokens": "x/ --file-tokens 200 --to flat-tokens",
}  # fmt: skip
INLINE = "--executor inline"


def _whole(format: str, layout: Layout) -> Iterator[Case]:
    """Yield the cases of verbs on whole datasets."""
    for variant, (name, flags) in VARIANTS.items():
        if name not in layout.names or (format in ALIKE and variant not in ("plain", "kept, keep-map")):
            continue
        source, more = layout.source(name), layout.source(name, "b" if name == "a" else "y")
        out = f"-o out/{layout.out}"
        lines = {
            "filter": f"filter {source} {out} {CONDITIONS[layout.kind]} {flags}",
            "merge": f"merge {more if 'b' in layout.names else source} {out} {flags}",
            "shuffle": f"shuffle {source} {out} --seed 3 {flags}",
            "split": f"split {source} -o out --ratio 3,1 --seed 5 {flags}",
        }
        for verb, line in lines.items():
            yield Case(verb, f"{format}, {variant}", (line.strip(),), ALL)
        only = f"split {source} {out} --parts 3 --only 1 {flags}".strip()
        yield Case("split", f"{format}, --only, {variant}", (only,), ("killed",))
    if "x" in layout.names:
        yield Case("purge", format, (f"purge {layout.source('x')} -o out/{layout.out}",), ("workers", "killed"))


def _converts(format: str, layout: Layout) -> Iterator[Case]:
    """Yield the cases of `convert`: each format to each, those with exclude lists to a few."""
    for to, target in TARGETS[layout.kind].items():
        source = layout.source("a").replace("--split", "--source-split")
        yield Case("convert", f"{format} to {to}", (f"convert {source} {target} {INLINE}",), ALL)
        if to in ("jsonl", "pbin", "mds", "folder") and "x" in layout.names and format not in ALIKE:
            for variant, flag in (("excluded", ""), ("kept", " --keep-excluded")):
                line = f"convert {layout.source('x')} {target} {INLINE}{flag}"
                yield Case("convert", f"{format} to {to}, {variant}", (line,), ALL)


def _packs() -> Iterator[Case]:
    """Yield the cases of `pack`."""
    how = f"--tokenizer tokenizer/bpe2 {INLINE}"
    for to, out in PACKED.items():
        for variant, (name, flags) in VARIANTS.items():
            line = f"pack jsonl/{name}.jsonl -o out/{out} {how} {flags}".strip()
            yield Case("pack", f"jsonl to {to}, {variant}", (line,), ALL)
        yield Case("pack", f"jsonl to {to}, shuffled", (f"pack jsonl/a.jsonl -o out/{out} {how} --shuffle 3",), ALL)
    inputs = {
        "several": "jsonl/a.jsonl jsonl-gz/x.jsonl.gz jsonl/one.jsonl", "jsonl-gz": "jsonl-gz/a.jsonl.gz",
        "jsonl-files": "jsonl-files/a", "parquet": "parquet/a.parquet",
        "text": "text/a.txt --input-format text", "text without its name": "text/a.txt",
        "text by line": "text/a.txt --input-format text --text-per line",
        "none": "jsonl/none.jsonl", "one": "jsonl/one.jsonl",
    }  # fmt: skip
    for name, given in inputs.items():
        yield Case("pack", f"{name} to pbin", (f"pack {given} -o out/x.pbin {how}",), ALL)
    options = {
        "eos none": "--eos none", "two fields": "--field id --field text",
        "fim": "--fim-rate 0.5 --fim-seed 3 --fim-tokens a b c",
        "no field": "--field title", "jq": "--jq .text", "dry run": "--dry-run", "excludes none": "--excludes none",
    }  # fmt: skip
    for name, given in options.items():
        yield Case("pack", f"jsonl to pbin, {name}", (f"pack jsonl/x.jsonl -o out/x.pbin {how} {given}",), ("parts",))
    empty = f"pack jsonl/b.jsonl -o out/x.pbin {how}"
    yield Case("pack", "empty texts", (empty,), ALL)
    yield Case("pack", "empty texts, skipped", (f"{empty} --on-error skip",), ALL)
    broken = f"pack broken/jsonl-more/a.jsonl -o out/x.pbin {how}"
    yield Case("pack", "invalid lines", (broken,), ("workers", "parts"))
    yield Case("pack", "invalid lines, skipped", (f"{broken} --on-error skip",), ("workers", "parts"))


def _cases() -> Iterator[Case]:
    for format, layout in LAYOUTS.items():
        yield from _whole(format, layout)
        yield from _converts(format, layout)
    yield from _packs()
    for verb, name, lines in sequences():
        ways = _WAYS.get(verb, ALL) if name.startswith("*") else ()
        yield Case(verb, name.removeprefix("*"), tuple(lines.split(" ; ")), ways, remote=verb == "requests")


CASES = list(_cases())
