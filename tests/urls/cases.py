"""The cases: a command for each verb and format. `IN` is a folder with the inputs, `OUT` an empty one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["copy", "read", "inside"]
"""Reads IN and writes OUT; reads IN alone; writes beside what it reads."""


@dataclass(frozen=True, slots=True)
class Case:
    """One command.

    Attributes:
        verb: and the format that it is about.
        kind: what it touches.
        line: of the command.
    """

    verb: str
    format: str
    kind: Kind
    line: str

    @property
    def name(self) -> str:
        return f"{self.verb} {self.format}"


ROW_FORMATS = {
    "jsonl": "a.jsonl", "pbin": "a.pbin", "flat-tokens": "a.zarr", "megatron": "mega/a.bin",
    "mds": "a.mds", "csv": "a.csv", "tsv": "a.tsv", "json-shards": "a.json-shards", "webdataset": "a.tars",
    "token-files": "a.files", "pbin with planes": "planes/a.pbin",
}  # fmt: skip
"""Formats that whole-dataset verbs take, and where one is."""

READ = {
    "jsonl": ("a.jsonl", "mds"), "jsonl-files": ("a.many", "mds"), "pbin": ("a.pbin", "pbin"),
    "flat-tokens": ("a.zarr", "pbin"), "megatron": ("mega/a.bin", "pbin"),
    "raw-tokens": ("raw.bin --format raw-tokens --layout uint16 --eos-id 50256", "pbin"),
    "pbin with planes": ("planes/a.pbin", "pbin"), "datatrove": ("a.ds", "pbin"), "litdata": ("a.litdata", "pbin"),
    "levanter": ("a.levanter", "pbin"),
    "mds": ("a.mds", "mds"), "csv": ("a.csv", "mds"), "tsv": ("a.tsv", "mds"),
    "json-shards": ("a.json-shards", "mds"), "webdataset": ("a.tars", "webdataset"),
    "token-files": ("a.files", "pbin"), "folder": ("a.folder", "folder"),
    "parquet": ("a.parquet", "mds"), "parquet folder": ("tables", "mds"),
    "csv file": ("table.csv", "mds"), "hf": ("a.hf --source-split train", "mds"),
}  # fmt: skip
"""Format → what is read, and the format that it is written to."""

WRITTEN = {
    "jsonl": ("a.mds", "x.jsonl"), "pbin": ("a.pbin", "x.pbin"), "flat-tokens": ("a.pbin", "x.zarr"),
    "flat-tokens split": ("a.pbin", "x.zarr --to flat-tokens --split train"),
    "megatron": ("a.pbin", "x --to megatron"), "pbin with planes": ("planes/a.pbin", "x.pbin"),
    "flat-tokens with planes": ("planes/a.pbin", "x.zarr"),
    "megatron with planes": ("planes/a.pbin", "x --to megatron"),
    "mds": ("a.jsonl", "x --to mds"), "csv": ("a.mds", "x --to csv"),
    "tsv": ("a.mds", "x --to tsv"), "xsv": ("a.mds", "x --to xsv -O separator=|"),
    "json-shards": ("a.mds", "x --to json-shards"), "webdataset": ("a.folder", "x --to webdataset"),
    "folder": ("a.tars", "x --to folder"),
}  # fmt: skip
"""Format → what is read, and what it is written to."""

TOKENIZER = Path(__file__).parent.parent / "golden" / "modalities" / "tokenizers" / "bpe2"
PACKED = {
    "pbin": "x.pbin", "flat-tokens": "x.zarr", "megatron": "x.bin", "mds": "x.mds --to mds",
    "token-files": "x/ --file-tokens 20", "token-files of megatron": "x/ --file-tokens 20 --to megatron",
    "token-files of flat-tokens": "x/ --file-tokens 20 --to flat-tokens",
}  # fmt: skip
"""What is packed into → the output."""


EXCLUDED = f"--indices {Path(__file__).parent / 'exclude-index-1.txt'} --reason asked"

_NAMED_BY_SUFFIX = ("jsonl", "pbin", "flat-tokens", "megatron", "token-files", "pbin with planes")


def _copies() -> list[Case]:
    found: list[Case] = []

    def add(verb: str, format: str, line: str) -> None:
        found.append(Case(verb, format, "copy", line))

    for format, name in ROW_FORMATS.items():
        other, suffix = name.replace("a.", "b."), "." + name.rpartition(".")[2]
        suffix = ".pbin" if format == "token-files" else suffix
        out = "OUT/x" + (suffix if format in _NAMED_BY_SUFFIX else "")
        add("merge", format, f"merge IN/{name} IN/{other} -o {out}")
        add("shuffle", format, f"shuffle IN/{name} -o {out} --seed 3")
        to = " --to pbin" if format == "token-files" else ""
        add("split", format, f"split IN/{name} -o OUT --ratio 3,1{to}")
        if format != "webdataset":
            chosen = "--where 'n > 2'" if format in ("jsonl", "mds", "csv", "tsv", "json-shards") else "--min-tokens 4"
            add("filter", format, f"filter IN/{name} -o {out} {chosen}")
            add("split --only", format, f"split IN/{name} -o {out} --parts 3 --only 1")
    for format, out in PACKED.items():
        add("pack", format, f"pack IN/a.jsonl -o OUT/{out} --tokenizer {TOKENIZER} --executor inline")
    add("purge", "pbin", "purge IN/a.pbin -o OUT/x.pbin --list IN/gone.exclude.jsonl")
    add("purge", "mds", "purge IN/a.mds -o OUT/x --list IN/gone.mds.exclude.jsonl")
    add("exclude", "a list elsewhere", f"exclude IN/a.mds {EXCLUDED} --list OUT/x.exclude.jsonl")
    add("report", "pbin", "report IN/a.pbin -o OUT/x.html")
    add("report", "webdataset", "report IN/a.tars -o OUT/x.html")
    add("report", "recipe", "report IN/a.yaml -o OUT/x.html --global-batch 2")
    add("filter", "its list", "filter IN/a.pbin -o OUT/x.pbin --indices IN/keep.txt")
    add("index", "jsonl", "index IN/a.jsonl --index-path OUT/x.idx")
    add("index", "jsonl of Energon", "index IN/a.jsonl --flavor energon --index-path OUT/x.jsonl.idx")
    for format, (name, to) in READ.items():
        out = f"OUT/x.{to}" if to == "pbin" else f"OUT/x --to {to}"
        out += " --mask-column assistant_masks" if format == "levanter" else ""
        add("convert from", format, f"convert IN/{name} {out} --workers 1".replace("--workers 1", _alone(to)).strip())
    for format, (name, out) in WRITTEN.items():
        add("convert to", format, f"convert IN/{name} OUT/{out} {_alone(format)}".strip())
    return found


def _alone(format: str) -> str:
    """One process, which is enough for eight samples."""
    return "--workers 1" if format in ("mds", "csv", "tsv", "xsv", "json-shards") else ""


def _reads() -> list[Case]:
    found: list[Case] = []
    for format, (name, _) in READ.items():
        if format == "csv file":
            continue  # only convert takes one
        name = name.replace("--source-split", "--split")
        known = name.partition(" --split")[0]
        found.append(Case("info", format, "read", f"info IN/{name} --json"))
        found.append(Case("head", format, "read", f"head IN/{name} -n 2 --json"))
        found.append(Case("verify", format, "read", f"verify IN/{known} --depth full --json"))
        if " " not in name:
            found.append(Case("diff", format, "read", f"diff IN/{name} IN/{name} --json"))
        found.append(Case("status", format, "read", f"status IN/{name.partition(' ')[0]} --json"))
    for format, name in {"jsonl": "a.jsonl", "mds": "a.mds", "csv": "a.csv", "parquet": "a.parquet"}.items():
        found.append(Case("find", format, "read", f"find IN/{name} --where 'n == 3' --json"))
    found.append(Case("find", "webdataset", "read", "find IN/a.tars --key a3 --json"))
    found.append(Case("find", "pbin", "read", f"find IN/b.files --text text --tokenizer {TOKENIZER} --json"))
    for format, name in {"pbin": "a.pbin", "mds": "a.mds", "webdataset": "a.tars", "token-files": "a.files"}.items():
        found.append(Case("lineage", format, "read", f"lineage IN/{name} --json"))
    for format, name in {**ROW_FORMATS, "recipe": "a.yaml"}.items():
        if format != "pbin with planes":
            found.append(Case("stage", format, "read", f"stage IN/{name} --hosts 1 --host 0"))
            found.append(Case("view", format, "read", f"view IN/{name} --no-open --port 0"))
    found.append(Case("view", "a shelf", "read", "view IN --no-open --port 0"))
    found.append(Case("exclude --show", "a list elsewhere", "read",
                      "exclude IN/a.mds --show --list IN/gone.mds.exclude.jsonl --json"))  # fmt: skip
    for verb, option in (("verify", "--depth decode"), ("head", "--pictures")):
        found.append(Case(f"{verb} {option}", "webdataset", "read", f"{verb} IN/a.tars {option}"))
    found.append(Case("plan", "recipe", "read", "plan IN/a.yaml --global-batch 2"))
    found.append(Case("explain", "recipe", "read", "explain IN/a.yaml --step 1 --global-batch 2 --json"))
    state = "explain IN/a.yaml --step 1 --global-batch 2 --state IN/state.json --json"
    found.append(Case("explain", "recipe and state", "read", state))
    found.append(Case("repair", "pbin", "read", "repair IN/a.pbin --json"))
    return found


def _inside() -> list[Case]:
    found = [
        Case("exclude", "pbin", "inside", f"exclude IN/a.pbin {EXCLUDED}"),
        Case("exclude", "mds", "inside", f"exclude IN/a.mds {EXCLUDED}"),
        Case("index", "beside", "inside", "index IN/c.jsonl"),
        Case("prepare", "jsonl", "inside", "prepare IN/c.jsonl"),
        Case("prepare", "tars", "inside", "prepare IN/a.bare --non-interactive --split-ratio 2,1,0 "
             "--sample-type CrudeWebdataset"),
        Case("prepare", "tar indexes", "inside", "prepare IN/a.tars --tar-index-only"),
        Case("prepare-media", "folder", "inside", "prepare-media IN/media"),
        Case("prepare-media", "webdataset", "inside", "prepare-media IN/a.tars --media-by-glob *.txt"),
        Case("verify --write-manifest", "pbin", "inside", "verify IN/a.pbin --write-manifest"),
        Case("verify --write-manifest", "token-files", "inside", "verify IN/a.files --write-manifest"),
        Case("verify --write-manifest", "tars", "inside", "verify IN/a.tars --write-manifest"),
    ]  # fmt: skip
    named = {"mds": "a.mds", "webdataset": "a.tars", "flat-tokens": "a.zarr", "megatron": "mega/a.bin"}
    named["token-files"] = "a.files"
    for format, name in {"jsonl": "a.jsonl", "pbin": "a.pbin", **named}.items():
        found.append(Case("repair --write", format, "inside", f"repair IN/broken/{name} --write"))
    return found


CASES = [*_copies(), *_reads(), *_inside()]
