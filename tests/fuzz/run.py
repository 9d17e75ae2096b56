"""Fuzz the readers: `python tests/fuzz/run.py`, for FUZZ_SECONDS (60). `make fuzz` calls it.

Each case is a dataset made by the original tools or by ours, changed a little, then opened, read and checked in every
way. Allowed are samples and `PenstockError`s. A finding is: any other exception, a hang, a process that dies, an
allocation beyond MEMORY_FACTOR times the dataset's size plus MEMORY_SLACK_BYTES, a file that `check` writes to, or a
dataset that `check(full)` calls clean and that can't be read.

A case is a pure function of (FUZZ_SEED, target, number); `--only TARGET:NUMBER` runs one again.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import gzip
import io
import itertools
import logging
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

import described
import mutate
import numpy as np
import pyarrow
import pyarrow.parquet
import shard_columns
import zstandard
from PIL import Image
from tests.internals import is_token_source

from penstock import prepare_media
from penstock.abc import SupportsKeys
from penstock.errors import ConfigError, NotFound, PenstockError
from penstock.formats import create, get_format, open_source
from penstock.store import LocalStore
from penstock.testing.token_files import write_token_files
from penstock.types import Depth, OpenOptions

GOLDEN = Path(__file__).parent.parent / "golden"
MOST_SEED_BYTES = 200_000  # bigger files make slow cases and no new ones
MEMORY_FACTOR = 64
MEMORY_SLACK_BYTES = 16 << 20
ADDRESS_SPACE_BYTES = 512 << 20
HANG_S = 30
CLEAN_EVERY = 50
DEPTHS: tuple[Depth, ...] = ("quick", "sample", "full")
LAYOUTS: dict[str, tuple[str | None, ...]] = {
    "pbin": (None, None, None, "h4", "h8", "h8le", "h12be", "h12le-abs", "h12le"),
    "datatrove": ("uint16", "uint32"),
    "raw-tokens": ("uint16", "uint32"),
}
NAMED_EOS = ("raw-tokens",)


Files = dict[str, bytes]


@dataclass(frozen=True)
class Target:
    """What is fuzzed.

    Attributes:
        format: its name.
        path: the dataset's path in the folder of a case.
        seeds: datasets, as relative path → content.
        mutations: end of a file's name → what may be done to it; blind ones for all others.
        exercise: what is done with it, where it is no dataset.
        changed: the only file that is mutated; else any.
    """

    format: str
    path: str
    seeds: list[Files]
    mutations: dict[str, list[mutate.Mutation]]
    exercise: Callable[[Path], None] | None = None
    changed: tuple[str, ...] = ()

    def mutations_of(self, name: str) -> list[mutate.Mutation]:
        return next((kinds for end, kinds in self.mutations.items() if name.endswith(end)), mutate.BLIND)


def files_in(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def write_tokens(folder: Path, path: str, format: str, count: int, **options: Any) -> Files:
    """A dataset of `count` documents."""
    rng = np.random.default_rng(count)
    shutil.rmtree(folder, ignore_errors=True)
    with create(folder / path, format=format, eos_id=0, **options) as writer:
        for _ in range(count):
            writer.write({"tokens": np.append(rng.integers(1, 200, rng.integers(0, 9)), 0)})
    return files_in(folder)


def packed_target(folder: Path) -> Target:
    made = sorted([*GOLDEN.glob("modalities/pbin/*"), *GOLDEN.glob("modalities/legacy/*")])
    seeds = [{"set.pbin": path.read_bytes()} for path in made if path.stat().st_size < MOST_SEED_BYTES]
    for token_bytes, count in ((1, 0), (1, 3), (2, 40), (4, 1001)):
        seeds.append(write_tokens(folder, "set.pbin", "pbin", count, token_bytes=token_bytes))
    return Target("pbin", "set.pbin", seeds, {".pbin": mutate.PACKED, ".penstock": mutate.JSON_DOCUMENT})


def lines_target(folder: Path) -> Target:
    seeds: list[Files] = []
    texts = ["", "a", "é😀\u2028", 'quote " and \\', "x" * 3000]
    for count in (1, 5, 1200):
        shutil.rmtree(folder, ignore_errors=True)
        with create(folder / "set.jsonl", format="jsonl") as writer:
            for number in range(count):
                writer.write({"text": texts[number % len(texts)] if count < 100 else "t", "n": number})
        files = files_in(folder)
        seeds += [files, {name: files[name] for name in ("set.jsonl", "set.idx")}, {"set.jsonl": files["set.jsonl"]}]
    kinds = {".jsonl": mutate.JSON_LINES, ".idx": mutate.INDEX, ".penstock": mutate.JSON_DOCUMENT}
    return Target("jsonl", "set.jsonl", seeds, kinds)


def many_lines_target(folder: Path) -> Target:
    """Several files, also compressed ones, in one folder."""
    text = b"".join(b'{"n": %d, "t": "%s"}\n' % (n, b"x" * (n % 30)) for n in range(60))
    frames = [zstandard.ZstdCompressor().compress(text[:900]), zstandard.ZstdCompressor().compress(text[900:])]
    packed = {
        "set/b.jsonl.gz": gzip.compress(text[:900]) + gzip.compress(text[900:]),
        "set/c.jsonl.zst": b"".join(frames),
    }
    seeds: list[Files] = [{"set/a.jsonl": text, **packed}, packed, {"set/a.jsonl": text, "set/sub/b.ndjson": text}]
    kinds = {".jsonl": mutate.JSON_LINES, ".ndjson": mutate.JSON_LINES}
    return Target("jsonl-files", "set", seeds, kinds)


def group_target(folder: Path) -> Target:
    groups = [path for path in sorted(GOLDEN.glob("flat-tokens/variants/*")) if path.is_dir()]
    seeds = [{f"set.zarr/{name}": data for name, data in files_in(path).items()} for path in groups]
    for zarr_format, count in ((2, 0), (2, 40), (3, 3)):
        seeds.append(write_tokens(folder, "set.zarr", "flat-tokens", count, zarr_format=zarr_format))
    kinds = dict.fromkeys((".json", ".zarray", ".zattrs", ".zgroup", ".zmetadata", ".penstock"), mutate.JSON_DOCUMENT)
    return Target("flat-tokens", "set.zarr", seeds, kinds)


def pair_target(folder: Path) -> Target:
    """A Megatron dataset: two files of one prefix."""
    seeds: list[Files] = []
    for index in sorted(GOLDEN.glob("megatron/*.idx")):
        data = index.with_suffix(".bin")
        if max(index.stat().st_size, data.stat().st_size) < MOST_SEED_BYTES:
            seeds.append({"set.idx": index.read_bytes(), "set.bin": data.read_bytes()})
    for token_bytes, count in ((2, 0), (2, 40), (4, 300)):
        seeds.append(write_tokens(folder, "set", "megatron", count, token_bytes=token_bytes))
    return Target("megatron", "set", seeds, {".idx": mutate.NUMBERED, ".penstock": mutate.JSON_DOCUMENT})


def tars_target(folder: Path) -> Target:
    """Prepared WebDatasets: what Energon left, and our own."""
    seeds: list[Files] = []
    for made in ("awkward", "versions/7_3_2", "versions/2_3_0"):
        meta = files_in(GOLDEN / "energon" / made / "nv-meta")
        shards = GOLDEN / "energon" / (made if made == "awkward" else "versions")
        files = {name: data for name, data in files_in(shards).items() if "nv-meta" not in name}
        seeds.append({f"set/{name}": data for name, data in files.items()})
        seeds[-1] |= {f"set/.nv-meta/{name}": data for name, data in meta.items()}
    for count in (1, 7):
        shutil.rmtree(folder, ignore_errors=True)
        with create(folder / "set", format="webdataset", maxcount=4) as writer:
            for number in range(count):
                writer.write({"__key__": f"{'d' * 120 * (number % 2)}k{number}", "bin": b"x" * number, "txt": "é"})
        seeds.append(files_in(folder))
    kinds = {
        **dict.fromkeys((".json", ".penstock"), mutate.JSON_DOCUMENT),
        ".yaml": mutate.YAML,
        ".sqlite": mutate.SQLITE,
        ".tar.idx": mutate.NUMBERED,
        ".tar": mutate.TAR,
    }
    return Target("webdataset", "set", seeds, kinds)


def shards_target(format_name: str, folder: Path) -> Target:
    """Folders of shards, raw and compressed, with every encoding that needs no trust."""
    ends = {"mds": (".mds",), "csv": (".csv", ".tsv", ".xsv"), "json-shards": (".json",)}[format_name]
    seeds: list[Files] = []
    for index in sorted(GOLDEN.glob("streaming/**/index.json")):
        files = files_in(index.parent)
        if '"pkl"' not in index.read_text() and f'"format": "{ends[0][1:]}"' in index.read_text():
            seeds.append({f"set/{name}": data for name, data in files.items()})
    for count, compression in ((0, None), (1, None), (40, None), (9, "zstd"), (9, "gz"), (9, "snappy"), (9, "bz2")):
        shutil.rmtree(folder, ignore_errors=True)
        columns = {"s": "str", "i": "int"} if format_name != "mds" else shard_columns.COLUMNS
        options = {"hashes": ["xxh64"], "compression": compression, "size_limit": 3000}
        with create(folder / "set", format=format_name, columns=columns, **options) as writer:
            for number in range(count):
                writer.write(shard_columns.sample(number, list(columns)))
        seeds.append(files_in(folder))
    kinds = {
        **dict.fromkeys(("index.json", ".penstock"), mutate.JSON_DOCUMENT),
        ".meta": mutate.SHARD,
        **dict.fromkeys(ends, mutate.SHARD if format_name == "mds" else mutate.JSON_LINES),
    }
    return Target(format_name, "set", seeds, kinds)


def folder_target(folder: Path) -> Target:
    """A folder of media files, with its index."""
    seeds: list[Files] = []
    for indexed in (False, True):
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "set").mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (number + 1, 3)).save(folder / "set" / f"{number}.png")
            (folder / "set" / f"{number}.json").write_text(f'{{"a": {number}}}')
        if indexed:
            prepare_media(folder / "set")
        seeds.append(files_in(folder))
    kinds = {".json": mutate.JSON_DOCUMENT, ".sqlite": mutate.SQLITE, ".penstock": mutate.JSON_DOCUMENT}
    return Target("folder", "set", seeds, kinds)


def runs_target(format_name: str, folder: Path) -> Target:
    """Tokens of datatrove and of nobody: golden ones."""
    if format_name == "datatrove":
        files = {path.name: path.read_bytes() for path in sorted(GOLDEN.glob("datatrove/seed_2byte.ds*"))}
        return Target(
            "datatrove", "seed_2byte.ds", [files], {".index": mutate.NUMBERED, ".metadata": mutate.JSON_LINES}
        )
    tokens = np.arange(1, 400, dtype="<u2").tobytes()
    header = np.array([20240520, 1, 399, *[0] * 253], "<i4").tobytes()
    return Target("raw-tokens", "set.bin", [{"set.bin": tokens}, {"set.bin": header + tokens}], {})


def litdata_target(folder: Path) -> Target:
    """Chunks of tokens and of samples, compressed and not: golden ones."""
    names = ("tokens-int32", "tokens-int64-zstd", "samples", "samples-batch", "samples-sample", "samples-arrow")
    sets = [{f"set/{name}": data for name, data in files_in(GOLDEN / "litdata" / one).items()} for one in names]
    return Target("litdata", "set", sets, {".json": mutate.JSON_DOCUMENT})


def levanter_target(folder: Path) -> Target:
    """Caches in one part and in shards, and one of trees: golden ones."""
    names = ("tokens", "sharded", "trees")
    sets = [{f"set/{name}": data for name, data in files_in(GOLDEN / "levanter" / one).items()} for one in names]
    return Target("levanter", "set", sets, {".json": mutate.JSON_DOCUMENT})


def arrow_target(format_name: str, folder: Path) -> Target:
    """Parquet files, and a saved dataset of Hugging Face's."""
    if format_name == "hf":
        files = {f"set/{name}": data for name, data in files_in(GOLDEN / "hf" / "test").items()}
        return Target("hf", "set", [files], {".json": mutate.JSON_DOCUMENT})
    table = pyarrow.table({"text": ["a", "b", None] * 40, "n": list(range(120)), "l": [[1, 2]] * 120})
    seeds: list[Files] = []
    for compression in ("none", "snappy", "zstd"):
        sink = io.BytesIO()
        pyarrow.parquet.write_table(table, sink, compression=compression, row_group_size=50)
        seeds.append({"set.parquet": sink.getvalue()})
    return Target("parquet", "set.parquet", seeds, {".parquet": mutate.NUMBERED})


def columns_target(folder: Path) -> Target:
    """Columns of ids: lists of three kinds in Parquet and in Arrow's files, and lines."""
    docs = [[1, 2, 3], [], [300], [7] * 9] * 20
    seeds: list[Files] = [{"ids.jsonl": b"".join(b'{"ids": %s}\n' % str(doc).encode() for doc in docs)}]
    for kind in (pyarrow.list_(pyarrow.int32()), pyarrow.large_list(pyarrow.int64()), pyarrow.list_(pyarrow.uint16())):
        table = pyarrow.table({"ids": pyarrow.array(docs, kind)})
        sink, stream = io.BytesIO(), io.BytesIO()
        pyarrow.parquet.write_table(table, sink, row_group_size=30)
        with pyarrow.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table, max_chunksize=30)
        seeds.append({"ids.parquet": sink.getvalue()})
        state = {"set/state.json": b'{"_data_files": [{"filename": "a.arrow"}]}', "set/dataset_info.json": b"{}"}
        seeds.append({"set/a.arrow": stream.getvalue(), **state})
    changed = ("ids.jsonl", "ids.parquet", "set/a.arrow")
    return Target("columns", "", seeds, {".jsonl": mutate.JSON_LINES}, read_columns, changed)


def read_columns(path: Path) -> None:
    """Open what is there by its column of ids, and read all of it."""
    folder = path if path.is_dir() else path.parent
    found = next(one for one in (folder / "ids.jsonl", folder / "ids.parquet", folder / "set") if one.exists())
    for options in ({}, {"one_document": True, "eos_id": 3}, {"vocab_size": 100}):
        given: Any = options
        with contextlib.suppress(PenstockError):
            source: Any = open_source(found, tokens_column="ids", **given)
            read(source)
            list(source.runs(0, len(source.rows)))


def token_files_target(folder: Path) -> Target:
    """Folders of token files; the index and all that it lists."""
    seeds: list[Files] = []
    for format_name in ("pbin", "megatron"):
        shutil.rmtree(folder, ignore_errors=True)
        files = [[[*range(20)], [7] * 30], [], [[number] for number in range(9)]]
        write_token_files(folder / "set", files, format_name, options={"eos_id": 0})
        seeds.append(files_in(folder))
    return Target("token-files", "set", seeds, {".json": mutate.JSON_DOCUMENT, ".penstock": mutate.JSON_DOCUMENT})


def recipe_target(folder: Path) -> Target:
    seeds = described.recipe_seeds(folder)
    return Target("recipe", "set.yaml", seeds, {".yaml": mutate.YAML}, described.exercise_recipe, ("set.yaml",))


def metadataset_target(folder: Path) -> Target:
    names = ("set.yaml", "inner.yaml")
    kinds = {".yaml": mutate.YAML}
    return Target("metadataset", "set.yaml", described.meta_seeds(folder), kinds, described.exercise_metadataset, names)


def state_target(folder: Path) -> Target:
    exercise = functools.partial(described.exercise_state, folder=folder)
    return Target("state", "state.json", described.state_seeds(folder), {".json": mutate.JSON_DOCUMENT}, exercise)


def tokenizer_target(folder: Path) -> Target:
    seeds = described.tokenizer_seeds(folder)
    return Target("tokenizer", "tokenizer.json", seeds, {".json": mutate.JSON_DOCUMENT}, described.exercise_tokenizer)


TARGETS = {
    "pbin": packed_target,
    "jsonl": lines_target,
    "jsonl-files": many_lines_target,
    "flat-tokens": group_target,
    "megatron": pair_target,
    "token-files": token_files_target,
    "webdataset": tars_target,
    "mds": functools.partial(shards_target, "mds"),
    "csv": functools.partial(shards_target, "csv"),
    "json-shards": functools.partial(shards_target, "json-shards"),
    "folder": folder_target,
    "datatrove": functools.partial(runs_target, "datatrove"),
    "raw-tokens": functools.partial(runs_target, "raw-tokens"),
    "litdata": litdata_target,
    "levanter": levanter_target,
    "columns": columns_target,
    "parquet": functools.partial(arrow_target, "parquet"),
    "hf": functools.partial(arrow_target, "hf"),
    "recipe": recipe_target,
    "metadataset": metadataset_target,
    "state": state_target,
    "tokenizer": tokenizer_target,
}


UNMAPPED = ("jsonl-files",)
"""Formats that refuse `read="mmap"`."""

TOKENS = ("pbin", "flat-tokens", "megatron", "token-files", "datatrove", "raw-tokens")


def make_case(target: Target, seed: int, number: int) -> tuple[Files, OpenOptions]:
    """The dataset of case `number`, and the options that it is opened with."""
    rng = random.Random(f"{seed}:{target.format}:{number}")
    files = dict(rng.choice(target.seeds))
    may_change = sorted(target.changed or files)
    for name in rng.sample(may_change, rng.choice((1, 1, 1, len(may_change)))):
        if name not in files:
            continue
        files[name] = mutate.mutate(files[name], rng, target.mutations_of(name))
    if len(files) > 1 and rng.random() < 0.05:
        del files[rng.choice(sorted(files))]
    tokens = target.format in TOKENS
    return files, OpenOptions(
        layout=rng.choice(LAYOUTS.get(target.format, (None,))),
        eos_id=3 if target.format in NAMED_EOS else rng.choice((None, None, 0, 3, 70_000)) if tokens else None,
        vocab_size=rng.choice((None, None, 100, 70_000)) if tokens else None,
        raw=target.format in ("webdataset", "hf", "folder") or (not tokens and rng.random() < 0.2),
        read=rng.choice(("auto", "mmap", "pread")),
    )


def exercise(format_name: str, path: str, options: OpenOptions) -> None:
    """Everything that a user may do with a dataset; raises what is no `PenstockError`."""
    store, chosen = LocalStore(), get_format(format_name)
    chosen.sniff(store, path)
    can_read = options.read != "mmap" or format_name not in UNMAPPED
    plain = can_read and options == OpenOptions(read=options.read, raw=options.raw)
    findings: list[Any] = []
    try:
        for depth in DEPTHS:
            findings = list(chosen.check(store, path, options, depth))
    except (ConfigError, NotFound) as error:
        if plain and isinstance(error, ConfigError):
            raise
        return  # an option that these data can't have, or nothing is there
    before = snapshot(os.path.dirname(path))
    chosen.repair(store, path, options, findings, write=False)
    if snapshot(os.path.dirname(path)) != before:
        raise AssertionError("repair(write=False) wrote something")
    clean = not any(finding.severity == "error" for finding in findings)
    try:
        read(opened(chosen, store, path, options))
    except PenstockError as error:
        if clean and plain:
            raise AssertionError(f"check finds no error, and reading says: {error}") from error
        if not str(error):
            raise AssertionError("an error without a message") from error


def opened(chosen: Any, store: LocalStore, path: str, options: OpenOptions) -> Any:
    """The dataset; where it asks which split is meant, which is no fault of it, its first one."""
    try:
        return chosen.open(store, path, options)
    except ConfigError as error:
        if error.hint != "Give split=":
            raise
        return chosen.open(store, path, dataclasses.replace(options, split=str(error.found).split(", ")[0]))


def read(source: Any) -> None:
    """Samples, batches, tokens and windows, from both ends."""
    str(source)
    if is_token_source(source):
        count = source.num_tokens
        if source.tokens(0, min(count, 100)).dtype != source.dtype:
            raise AssertionError("tokens of another dtype")
        if count > 3:
            source.gather(np.array([0, count - 3, 1]), 3)
    errors: list[PenstockError] = []
    size = len(source)
    for index in {0, 1, size // 2, size - 1, -1} if size else ():
        try:
            source[index]
        except IndexError:
            if -size <= index < size:
                raise
        except PenstockError as error:
            errors.append(error)
    if size:
        source.get_batch([0, size - 1])
        if isinstance(source, SupportsKeys):
            source.index_of(source.key_of(size - 1))
        if hasattr(source, "get_media_metadata"):
            with contextlib.suppress(NotFound):
                source.get_media_metadata("1.png")
    if len(source.fingerprint) < 16:
        raise AssertionError("a fingerprint that is too short")
    if errors:
        raise errors[0]


def snapshot(folder: str) -> list[tuple[str, int]]:
    """Names and sizes of all files under a folder."""
    return sorted((str(path), path.stat().st_size) for path in Path(folder).rglob("*"))


def run_case(target: Target, seed: int, number: int, folder: Path) -> None:
    """One case; raises for a finding."""
    files, options = make_case(target, seed, number)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    allowed_bytes = MEMORY_FACTOR * sum(map(len, files.values())) + MEMORY_SLACK_BYTES
    tracemalloc.reset_peak()
    before_bytes = tracemalloc.get_traced_memory()[0]
    if target.exercise is not None:
        target.exercise(folder / target.path)
    else:
        exercise(target.format, str(folder / target.path), options)
    taken_bytes = tracemalloc.get_traced_memory()[1] - before_bytes
    if taken_bytes > allowed_bytes:
        raise AssertionError(f"took {taken_bytes:,} bytes, allowed are {allowed_bytes:,}")


def work(
    name: str, seed: int, numbers: Sequence[int] | None, start: int, stop_s: float, work_folder: Path, out: Connection
) -> None:
    """In a child: cases from `start` until `stop_s`, or `numbers`; tells of each before it runs, then of findings."""
    os.environ["PENSTOCK_CACHE"] = str(work_folder / "cache")
    made = work_folder / "seeds"
    made.mkdir(parents=True, exist_ok=True)
    target = TARGETS[name](made)
    logging.getLogger("penstock").setLevel(logging.ERROR)  # a warning a case would fill the screen
    # A fork of a large process is large before it does anything.
    most_bytes = ADDRESS_SPACE_BYTES + int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    tracemalloc.start()
    for number in itertools.count(start) if numbers is None else numbers:
        if numbers is None and time.monotonic() >= stop_s:
            break
        out.send(("case", number, None))
        signal.alarm(HANG_S)
        try:
            run_case(target, seed, number, work_folder / "case")
        except Exception:
            out.send(("finding", number, traceback.format_exc()))
        signal.alarm(0)
        if number % CLEAN_EVERY == 0:
            shutil.rmtree(work_folder / "cache", ignore_errors=True)
    out.send(("done", 0, None))


def fuzz(
    name: str, seed: int, seconds: float, numbers: Sequence[int] | None, folder: Path
) -> tuple[int, list[tuple[int, str]]]:
    """Run one target; a child that dies is a finding, and the next goes on behind it. Returns cases and findings."""
    stop_s = time.monotonic() + seconds
    findings: list[tuple[int, str]] = []
    start, ran = 0, 0
    while True:
        ours, theirs = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("fork").Process(
            target=work, args=(name, seed, numbers, start, stop_s, folder, theirs)
        )
        child.start()
        theirs.close()
        last, ended = start, False
        try:
            while True:
                kind, number, more = ours.recv()
                ended = kind == "done"
                last = last if ended else number
                ran += kind == "case"
                if kind == "finding":
                    findings.append((number, more))
        except EOFError:
            child.join()
        if ended:
            return ran, findings
        said = (
            f"no end after {HANG_S} s" if child.exitcode == -signal.SIGALRM else f"the process died: {child.exitcode}"
        )
        findings.append((last, said))
        start = last + 1
        if numbers is not None or len(findings) > 20:
            return ran, findings


def run_target(
    name: str, seed: int, seconds: float, numbers: Sequence[int] | None, folder: Path, out: Connection
) -> None:
    out.send(fuzz(name, seed, seconds, numbers, folder / name))


def distinct(findings: list[tuple[int, str]]) -> list[list[tuple[int, str]]]:
    """Findings of one kind together: raised at the same place, or of the same text without its numbers."""
    kinds: dict[str, list[tuple[int, str]]] = {}
    for number, text in findings:
        places = re.findall(r'File "[^"]*/(?:penstock|fuzz)/[^"]*", line \d+', text)
        kinds.setdefault(places[-1] + text.splitlines()[-1][:15] if places else text, []).append((number, text))
    return list(kinds.values())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("FUZZ_SECONDS", "60")))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("FUZZ_SEED", "1")))
    parser.add_argument("--only", help="TARGET alone, or TARGET:NUMBER to run one case again")
    given = parser.parse_args(arguments)
    name, _, number = (given.only or "").partition(":")
    chosen = {name: [int(number)] if number else None} if given.only else dict.fromkeys(TARGETS)
    print(f"fuzz: seed {given.seed}, {given.seconds:g} s, targets {', '.join(chosen)}")
    failed = False
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # no case waits for a disk
    with tempfile.TemporaryDirectory(prefix="penstock-fuzz-", dir=memory) as folder:
        running = []
        for name, numbers in chosen.items():
            ours, theirs = multiprocessing.Pipe(duplex=False)
            process = multiprocessing.get_context("fork").Process(
                target=run_target, args=(name, given.seed, given.seconds, numbers, Path(folder), theirs)
            )
            process.start()
            running.append((name, process, ours))
        for name, process, ours in running:
            ran, findings = ours.recv()
            process.join()
            for kind in distinct(findings):
                number, text = kind[0]
                print(f"\n--- {len(kind)} like --seed {given.seed} --only {name}:{number}\n{text}")
            print(f"fuzz: {name}: {ran:,} cases, {len(findings)} findings, {len(distinct(findings))} kinds")
            failed |= bool(findings) or not ran
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
