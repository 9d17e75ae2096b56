"""Everything that writes, small enough for a fault at each of its file operations."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import inputs
import numpy as np
from faults import Scenario, files_of
from tests import internals

import penstock
from penstock.errors import NotFound
from penstock.formats import get_format
from penstock.store import LocalStore
from penstock.types import OpenOptions

GOLDEN = Path(__file__).parent.parent / "golden" / "modalities" / "pbin"
OLD_DOCUMENTS = [[9, 9, 0], [8, 0]]
DOCUMENTS = [[number % 250 + 1 for number in range(length)] + [0] for length in (5, 0, 300, 41)]


def write_tokens(path: Path, documents: list[list[int]], *, overwrite: bool = False) -> None:
    with penstock.create(path, format="pbin", token_bytes=2, eos_id=0, overwrite=overwrite) as writer:
        for document in documents:
            writer.write({"tokens": np.array(document, np.uint16)})


def write_lines(path: Path, texts: list[str], *, overwrite: bool = False) -> None:
    with penstock.create(path, format="jsonl", overwrite=overwrite) as writer:
        for text in texts:
            writer.write({"text": text})


def see(name: str, **options: Any) -> Callable[[Path], Any]:
    """All samples of the dataset `name`, as plain values."""

    def view(folder: Path) -> list[Any]:
        source = penstock.open(folder / name, **options)
        return [
            {key: getattr(value, "tolist", lambda value=value: value)() for key, value in sample.items()}
            for sample in source
        ]

    return view


def index_again(folder: Path, overwrite: bool) -> None:
    from tests.internals import build_index

    build_index(folder / "a.jsonl", overwrite=overwrite, workers=1)


def write_jsonl_alone(folder: Path) -> None:
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": "x" * number}) + "\n" for number in range(40)))


def starts(folder: Path, overwrite: bool) -> Any:
    return penstock.open(folder / "in.pbin").doc_starts.tolist()


@functools.cache
def pack_inputs() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        inputs.inputs_in(Path(folder), 8000)
        return {name: (Path(folder) / name).read_bytes() for name in inputs.NAMES}


def write_pack_inputs(folder: Path) -> None:
    for name, data in pack_inputs().items():
        (folder / name).write_bytes(data)
        os.utime(folder / name, (1_000_000_000, 1_000_000_000))


def pack(folder: Path, overwrite: bool) -> None:
    from penstock.prepare import pack

    pack(
        [folder / "a.jsonl.gz", folder / "b.jsonl"],
        folder / "made" / "out.pbin",
        tokenizer=folder / "tokenizer.json",
        eos=inputs.EOS,
        executor="inline",
        overwrite=overwrite,
        engine="tokenizers",  # the other engine reads samples first, and writes no more than this one
        task_bytes=3000,
    )


def write_old_pack(folder: Path) -> None:
    write_tokens(folder / "made" / "out.pbin", OLD_DOCUMENTS)


def golden_packed(name: str) -> Callable[[Path], None]:
    """A setup: a packed file that the original made."""
    return lambda folder: (folder / "out.pbin").write_bytes((GOLDEN / name).read_bytes()) and None


def see_mended(folder: Path) -> Any:
    """The file, and whether what stood there is still somewhere."""
    before = (GOLDEN / "merged.pbin").read_bytes()
    return (folder / "out.pbin").read_bytes(), before in files_of(folder).values()


def make_manifest(folder: Path, overwrite: bool) -> None:
    made: Any = get_format("pbin")
    made.write_manifest(LocalStore(), str(folder / "out.pbin"), OpenOptions())


def see_file(name: str) -> Callable[[Path], Any]:
    """The bytes of a file, None where it is not there."""
    return lambda folder: (folder / name).read_bytes() if (folder / name).exists() else None


def write_group(folder: Path, documents: list[list[int]], *, overwrite: bool = False) -> None:
    with penstock.create(folder / "out.zarr", format="flat-tokens", split="train", overwrite=overwrite) as writer:
        for document in documents:
            writer.write({"tokens": np.array(document, np.uint16)})


def write_pair(folder: Path, documents: list[list[int]], *, overwrite: bool = False) -> None:
    options: dict[str, Any] = {"format": "megatron", "token_bytes": 2, "eos_id": 0, "overwrite": overwrite}
    with penstock.create(folder / "out", **options) as writer:
        for document in documents:
            writer.write({"tokens": np.array(document, np.uint16)})


def see_pair(folder: Path) -> Any:
    """What a reader sees of a pair, after a check that Megatron would not see a mixed one."""
    kept = internals.old_pair_of(folder / "out")
    if (folder / "out.idx").exists():
        straight = [f.code for f in penstock.verify(folder / "out", depth="full") if f.code != "megatron.replaced"]
        if straight:
            return straight
    elif kept.with_name(kept.name + ".idx").exists() and penstock.verify(kept, depth="full"):
        return "what is kept of the old pair is not sound"
    return see("out")(folder)


def write_two(folder: Path) -> None:
    """Two packed files."""
    write_tokens(folder / "a.pbin", DOCUMENTS)
    write_tokens(folder / "b.pbin", OLD_DOCUMENTS)


def write_old_pbin(folder: Path) -> None:
    write_tokens(folder / "out.pbin", OLD_DOCUMENTS)


def converted(source: str, target: str, **options: Any) -> Callable[[Path, bool], object]:
    """The work of a conversion."""
    return lambda folder, overwrite: penstock.convert(folder / source, folder / target, overwrite=overwrite, **options)


def verb(name: str, **options: Any) -> Callable[[Path, bool], object]:
    """The work of a verb from `a.pbin` to `out.pbin`."""

    def work(folder: Path, overwrite: bool) -> None:
        call = internals.chunk if name == "chunk" else getattr(penstock, name)
        source = [folder / "a.pbin", folder / "b.pbin"] if name == "merge" else folder / "a.pbin"
        call(source, folder / "out.pbin", overwrite=overwrite, **options)

    return work


def split(folder: Path, overwrite: bool) -> None:
    from penstock import split

    split(folder / "a.pbin", folder / "parts", ratio=(2, 1), seed=3, overwrite=overwrite)


def see_parts(folder: Path) -> Any:
    """The parts; None where one is missing. Those that are there can be read."""
    parts = {path.name: see(path.name)(folder / "parts") for path in (folder / "parts").glob("*.pbin")}
    return parts if len(parts) == 2 else None


def write_shards(folder: Path, count: int, *, overwrite: bool = False, **options: Any) -> None:
    with penstock.create(folder / "set", overwrite=overwrite, size_limit=300, hashes=["sha1"], **options) as writer:
        for number in range(count):
            writer.write({"id": number, "text": f"row {number}" * 3})


MDS: dict[str, Any] = {"format": "mds", "columns": {"id": "int", "text": "str"}, "compression": "zstd"}
CSV: dict[str, Any] = {"format": "csv", "columns": {"id": "int", "text": "str"}}


def write_parts(folder: Path) -> None:
    """Two folders of shards below another."""
    for number in (0, 1):
        with penstock.create(folder / "set" / str(number), size_limit=300, **CSV) as writer:
            for row in range(8):
                writer.write({"id": number, "text": f"row {row}" * 5})


def merge_parts(folder: Path, overwrite: bool, *, parts: int = 2) -> None:
    from tests.internals import merge_index

    merge_index(folder / "set", [folder / "set" / str(number) for number in range(parts)], overwrite=overwrite)


def copy_parts(folder: Path, overwrite: bool, *, parts: int = 2) -> None:
    from penstock import merge

    merge([folder / "set" / str(number) for number in range(parts)], folder / "out", overwrite=overwrite)


BROKEN_INDEX = b'{"shards": ['


def write_broken_index(folder: Path) -> None:
    write_shards(folder, 12, **MDS)
    (folder / "set" / "index.json").write_bytes(BROKEN_INDEX)


def see_mended_index(folder: Path) -> Any:
    """The index, and whether what stood there is still somewhere."""
    return (folder / "set" / "index.json").read_bytes(), BROKEN_INDEX in files_of(folder).values()


def write_two_lines(folder: Path) -> None:
    write_lines(folder / "in.jsonl", ["one", "two"])


def convert_in_groups(folder: Path, overwrite: bool) -> None:
    penstock.convert(
        folder / "in.jsonl", folder / "set", to="mds", group_rows=1, executor="inline", overwrite=overwrite
    )


def write_webdataset(folder: Path, count: int, *, overwrite: bool = False) -> None:
    with penstock.create(folder / "set", format="webdataset", maxcount=2, overwrite=overwrite) as writer:
        for number in range(count):
            writer.write({"__key__": f"k{number}", "bin": b"x" * number * 300})


def write_tars(folder: Path) -> None:
    """The shards of a WebDataset, and nothing that was made from them."""
    write_webdataset(folder, 3)
    for path in sorted((folder / "set").rglob("*")):
        if path.is_file() and path.suffix != ".tar":
            path.unlink()
        elif path.is_file():
            os.utime(path, (1_000_000_000, 1_000_000_000))
    (folder / "set" / ".nv-meta").rmdir()


def prepare(folder: Path, overwrite: bool) -> None:
    options = internals.DatasetOptions(sample_type="CrudeWebdataset")
    internals.prepare_webdataset(
        folder / "set", split_ratio=(1, 0, 0), dataset=options, executor="inline", overwrite=overwrite
    )


def see_prepared(folder: Path) -> Any:
    """The samples of a dataset that is prepared; None before that."""
    return see("set", raw=True)(folder) if (folder / "set" / ".nv-meta" / ".info.json").exists() else None


def prepare_otherwise(folder: Path) -> None:
    internals.prepare_webdataset(folder / "set", split_ratio=(1, 1, 0), executor="inline")


def write_media(folder: Path) -> None:
    (folder / "media" / "sub").mkdir(parents=True)
    for number in range(3):
        screen, frame = bytes([number + 1, 0, 2, 0, 0, 0, 0]), bytes([0, 0, 0, 0, 1, 0, 1, 0, 0])
        (folder / "media" / "sub" / f"{number}.gif").write_bytes(b"GIF89a" + screen + b"," + frame + b"\2\2D\1\0;")
        os.utime(folder / "media" / "sub" / f"{number}.gif", (1_000_000, 1_000_000))


def prepare_media_of(folder: Path, overwrite: bool) -> None:
    from penstock import prepare_media

    prepare_media(folder / "media", workers=1)


def see_media(folder: Path) -> Any:
    index = folder / "media" / ".nv-meta" / "index.sqlite"
    if not index.exists():
        raise NotFound("no index", path=index)
    source: Any = penstock.open(folder / "media", raw=True)
    known = []
    for place in range(len(source)):
        with contextlib.suppress(NotFound):
            known.append([source.key_of(place), source.get_media_metadata(source.key_of(place)).width])
    return known


def older_media(folder: Path) -> None:
    """An index of one file, before the others came."""
    others = [folder / "media" / "sub" / f"{number}.gif" for number in (1, 2)]
    kept = [path.read_bytes() for path in others]
    for path in others:
        path.unlink()
    prepare_media_of(folder, False)
    for path, data in zip(others, kept, strict=True):
        path.write_bytes(data)
        os.utime(path, (1_000_000, 1_000_000))


def write_for_energon(folder: Path, texts: list[str], *, overwrite: bool = False) -> None:
    with penstock.create(folder / "out.jsonl", format="jsonl", flavor="energon", overwrite=overwrite) as writer:
        for text in texts:
            writer.write({"text": text})


def write_files(folder: Path, texts: list[str], *, overwrite: bool = False) -> None:
    with penstock.create(folder / "out", format="folder", overwrite=overwrite) as writer:
        for number, text in enumerate(texts):
            writer.write({"__key__": f"d/{number}", "txt": text})


SCENARIOS = [
    Scenario("media index", write_media, prepare_media_of, see_media, older_media),
    Scenario(
        "folder writer",
        lambda folder: None,
        lambda folder, overwrite: write_files(folder, ["a", "é" * 2000, ""], overwrite=overwrite),
        see("out"),
        lambda folder: write_files(folder, ["old", "older"]),
    ),
    Scenario(
        "jsonl writer for Energon",
        lambda folder: None,
        lambda folder, overwrite: write_for_energon(folder, ["a", "é" * 2000], overwrite=overwrite),
        lambda folder: [dict(sample["json"]) for sample in penstock.open(folder / "out.jsonl", flavor="energon")],
        lambda folder: write_for_energon(folder, ["old", "older"]),
    ),
    Scenario(
        "pbin writer",
        lambda folder: None,
        lambda folder, overwrite: write_tokens(folder / "deep" / "out.pbin", DOCUMENTS, overwrite=overwrite),
        see("deep/out.pbin"),
        lambda folder: write_tokens(folder / "deep" / "out.pbin", OLD_DOCUMENTS),
    ),
    Scenario(
        "jsonl writer",
        lambda folder: None,
        lambda folder, overwrite: write_lines(folder / "out.jsonl", ["a", "é" * 2000, ""], overwrite=overwrite),
        see("out.jsonl"),
        lambda folder: write_lines(folder / "out.jsonl", ["old", "older"]),
    ),
    Scenario(
        "index",
        write_jsonl_alone,
        index_again,
        see_file("a.idx"),
        lambda folder: (folder / "a.idx").write_bytes(b"old"),
    ),
    Scenario(
        "index made at first use",
        write_jsonl_alone,
        lambda folder, overwrite: len(penstock.open(folder / "a.jsonl")),
        see("a.jsonl"),
    ),
    Scenario(
        "document starts kept in the cache",
        lambda folder: write_tokens(folder / "in.pbin", [[1, 0]] * 3000),
        starts,
        lambda folder: starts(folder, False),
    ),
    Scenario(
        "convert",
        lambda folder: write_tokens(folder / "in.pbin", DOCUMENTS),
        lambda folder, overwrite: penstock.convert(folder / "in.pbin", folder / "out.pbin", overwrite=overwrite),
        see("out.pbin"),
        lambda folder: write_tokens(folder / "out.pbin", OLD_DOCUMENTS),
    ),
    Scenario(
        "flat-tokens writer",
        lambda folder: None,
        lambda folder, overwrite: write_group(folder, DOCUMENTS, overwrite=overwrite),
        see("out.zarr"),
        lambda folder: write_group(folder, OLD_DOCUMENTS),
    ),
    Scenario(
        "convert to flat-tokens",
        lambda folder: write_tokens(folder / "in.pbin", DOCUMENTS),
        converted("in.pbin", "out.zarr", split="train"),
        see("out.zarr"),
        lambda folder: write_group(folder, OLD_DOCUMENTS),
    ),
    Scenario(
        "convert to flat-tokens, compressed",
        lambda folder: write_tokens(folder / "in.pbin", DOCUMENTS),
        converted("in.pbin", "out.zarr", compressor="zstd", chunk_tokens=64),
        see("out.zarr"),
    ),
    Scenario(
        "convert to megatron",
        lambda folder: write_tokens(folder / "in.pbin", DOCUMENTS),
        converted("in.pbin", "out", to="megatron"),
        see_pair,
        lambda folder: write_pair(folder, OLD_DOCUMENTS),
    ),
    Scenario(
        "convert from flat-tokens",
        lambda folder: write_group(folder, DOCUMENTS),
        converted("out.zarr", "out.pbin"),
        see("out.pbin"),
        write_old_pbin,
    ),
    Scenario(
        "megatron writer",
        lambda folder: None,
        lambda folder, overwrite: write_pair(folder, DOCUMENTS, overwrite=overwrite),
        see_pair,
        lambda folder: write_pair(folder, OLD_DOCUMENTS),
    ),
    Scenario("merge", write_two, verb("merge"), see("out.pbin"), write_old_pbin),
    Scenario("shuffle", write_two, verb("shuffle", seed=7), see("out.pbin"), write_old_pbin),
    Scenario("filter", write_two, verb("filter", min_tokens=10), see("out.pbin"), write_old_pbin),
    Scenario("chunk", write_two, verb("chunk", chunk_id=0, num_chunks=2), see("out.pbin"), write_old_pbin),
    Scenario("split", write_two, split, see_parts),
    Scenario(
        "mds writer",
        lambda folder: None,
        lambda folder, overwrite: write_shards(folder, 12, overwrite=overwrite, **MDS),
        see("set"),
        lambda folder: write_shards(folder, 3, **MDS),
    ),
    Scenario(
        "csv writer",
        lambda folder: None,
        lambda folder, overwrite: write_shards(folder, 24, overwrite=overwrite, **CSV),
        see("set"),
        lambda folder: write_shards(folder, 3, **CSV),
    ),
    Scenario(
        "merge of shards",
        write_parts,
        copy_parts,
        see("out"),
        lambda folder: copy_parts(folder, False, parts=1),
    ),
    Scenario(
        "merged index",
        write_parts,
        merge_parts,
        see_file("set/index.json"),
        lambda folder: merge_parts(folder, False, parts=1),
    ),
    Scenario(
        "repair of shards",
        write_broken_index,
        lambda folder, overwrite: penstock.repair(folder / "set", format="mds", write=True),
        see_mended_index,
        spare=r"set/index\.json\.bak\d+|set/\.index\.json\.bak\..*",
    ),
    Scenario(
        "convert to mds, in groups",
        write_two_lines,
        convert_in_groups,
        see("set"),
        lambda folder: write_shards(folder, 3, **MDS),
        again="is refused",
    ),
    Scenario(
        "webdataset writer",
        lambda folder: None,
        lambda folder, overwrite: write_webdataset(folder, 5, overwrite=overwrite),
        see("set", raw=True),
        lambda folder: write_webdataset(folder, 2),
    ),
    Scenario("prepare", write_tars, prepare, see_prepared, prepare_otherwise, again="is refused"),
    Scenario(
        "repair",
        golden_packed("merged.pbin"),
        lambda folder, overwrite: penstock.repair(folder / "out.pbin", write=True),
        see_mended,
        spare=r"out\.pbin\.bak\d+|\.out\.pbin\.bak\..*",
    ),
    Scenario("manifest", golden_packed("docs.bpe2.pbin"), make_manifest, see_file("out.pbin.penstock")),
    Scenario("pack", write_pack_inputs, pack, see("made/out.pbin"), write_old_pack, again="is refused"),
]
