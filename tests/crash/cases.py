"""What is killed at each of its calls: every writer and every verb that writes, small."""

from __future__ import annotations

import errno
import functools
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import inputs
import numpy as np
import pytest
from each_call import Case
from scenarios import (
    BROKEN_INDEX,
    DOCUMENTS,
    GOLDEN,
    OLD_DOCUMENTS,
    older_media,
    prepare_media_of,
    see_media,
    write_broken_index,
    write_media,
    write_pack_inputs,
    write_parts,
    write_tars,
)
from tests import internals

import penstock
from penstock.errors import NotFound, PenstockError, PrepareError
from penstock.types import Severity

Work = Callable[[Path, bool], object]
Setup = Callable[[Path], object]

TEXTS = ["a", "é" * 2000, "", "the end"]
OLD_TEXTS = ["old", "older"]
BUCKET = "bucket"
FILE_TOKENS = 1500
ERRORS: tuple[Severity, ...] = ("error",)


def nothing(folder: Path) -> None:
    """No input."""


# --- what a reader sees ------------------------------------------------------------------------------------------


def clean(name: str, **options: Any) -> Callable[[Path], Any]:
    """All samples of the dataset `name`, as plain values, and the errors that a full check finds."""

    def view(folder: Path) -> Any:
        path = name if "://" in name else folder / name
        source = penstock.open(path, **options)
        found = [one.code for one in penstock.verify(path, depth="full", **options) if one.severity in ERRORS]
        return [_plain(sample) for sample in source], found

    return view


def tried(name: str, **options: Any) -> Callable[[Path], Any]:
    """As `clean`, where what is to be mended may not open."""

    def view(folder: Path) -> Any:
        try:
            samples = [_plain(sample) for sample in penstock.open(folder / name, **options)]
        except PenstockError as error:
            samples = [error.code]
        return samples, [one.code for one in penstock.verify(folder / name) if one.severity in ERRORS] != []

    return view


def all_of(*views: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Several views of what is made one after another; nothing is there until all are."""
    return lambda folder: [view(folder) for view in views]


def file_of(name: str) -> Callable[[Path], Any]:
    """The bytes of a file."""

    def view(folder: Path) -> bytes:
        if not (folder / name).exists():
            raise NotFound("no such file", path=folder / name)
        return (folder / name).read_bytes()

    return view


def _plain(sample: Any) -> Any:
    items = sample.items() if hasattr(sample, "items") else [("sample", sample)]
    return {key: value.tolist() if hasattr(value, "tolist") else value for key, value in items if key != "__sources__"}


# --- writers -----------------------------------------------------------------------------------------------------


def tokens(name: str, documents: Sequence[Sequence[int]] = DOCUMENTS, **options: Any) -> Work:
    """A writer of a token format."""
    known = {"token_bytes": 2, "eos_id": 0} if options["format"] != "flat-tokens" else {}

    def work(folder: Path, overwrite: bool) -> None:
        path = name if "://" in name else folder / name
        with penstock.create(path, overwrite=overwrite, **known, **options) as writer:
            for document in documents:
                writer.write({"tokens": np.array(document, np.uint16)})

    return work


def rows(name: str, count: int, **options: Any) -> Work:
    """A writer of a shard format with columns, four rows or so a shard."""
    columns = {"id": "int", "text": "str"}

    def work(folder: Path, overwrite: bool) -> None:
        path = name if "://" in name else folder / name
        with penstock.create(path, overwrite=overwrite, size_limit=250, columns=columns, **options) as writer:
            for number in range(count):
                writer.write({"id": number, "text": f"row {number} of {count}" * 3})

    return work


def lines(name: str, texts: Sequence[str] = TEXTS, **options: Any) -> Work:
    """The writer of JSONL."""

    def work(folder: Path, overwrite: bool) -> None:
        path = name if "://" in name else folder / name
        with penstock.create(path, format="jsonl", overwrite=overwrite, **options) as writer:
            for text in texts:
                writer.write({"text": text})

    return work


def parts(name: str, count: int, *, format: str = "webdataset", **options: Any) -> Work:
    """A writer of samples with a key and parts."""

    def work(folder: Path, overwrite: bool) -> None:
        path = name if "://" in name else folder / name
        with penstock.create(path, format=format, overwrite=overwrite, **options) as writer:
            for number in range(count):
                writer.write({"__key__": f"k{number}", "bin": b"x" * number * 300, "txt": f"{count}"})

    return work


def once(work: Work) -> Setup:
    """What makes something new, as a setup."""
    return lambda folder: work(folder, False)


def both(*setups: Setup) -> Setup:
    """One setup after the other."""
    return lambda folder: [setup(folder) for setup in setups]


def writer(name: str, new: Work, old: Work, view: Callable[[Path], Any], **how: Any) -> Case:
    """The case of a writer."""
    return Case(f"write {name}", nothing, new, view, once(old), **how)


# --- verbs -------------------------------------------------------------------------------------------------------


def verb(name: str, source: str | Sequence[str], target: str, **options: Any) -> Work:
    """The work of a verb on whole datasets."""

    def work(folder: Path, overwrite: bool) -> None:
        call = internals.chunk if name == "chunk" else getattr(penstock, name)
        given = folder / source if isinstance(source, str) else [folder / one for one in source]
        call(given, target if "://" in target else folder / target, overwrite=overwrite, **options)

    return work


def converted(source: str, target: str, **options: Any) -> Work:
    """The work of a conversion."""
    return lambda folder, overwrite: penstock.convert(
        folder / source,
        target if "://" in target else folder / target,
        overwrite=overwrite,
        **{"executor": "inline", **options},
    )


def packed(
    target: str, *, given: Sequence[str] = ("a.jsonl.gz", "b.jsonl"), executor: str = "inline", **options: Any
) -> Work:
    """The work of `pack`."""

    def work(folder: Path, overwrite: bool) -> None:
        penstock.pack(
            [folder / one for one in given],
            target if "://" in target else folder / target,
            tokenizer=folder / "tokenizer.json",
            eos=inputs.EOS,
            executor=executor,
            overwrite=overwrite,
            engine="tokenizers",
            task_bytes=3000,
            **options,
        )

    return work


def packed_files(target: str, to: str, **options: Any) -> Work:
    """The work of `pack` into a folder of token files."""
    return packed(target, to=to, file_tokens=FILE_TOKENS, **options)


def by_an_array(part_of: Callable[..., Work]) -> Work:
    """What an array of two does, and the one that finishes it."""
    shares: list[dict[str, Any]] = [{"part": (0, 2)}, {"part": (1, 2)}, {"finish": True}]
    return lambda folder, overwrite: [part_of(**share)(folder, overwrite) for share in shares]


def write_chats(folder: Path) -> None:
    """A tokenizer with a chat template, and conversations of the same texts."""
    write_pack_inputs(folder)
    lines = [json.loads(line)["text"] for line in (folder / "b.jsonl").read_bytes().splitlines()]
    chats = ([{"role": "user", "content": one[:40]}, {"role": "assistant", "content": one}] for one in lines)
    (folder / "b.jsonl").write_text("".join(json.dumps({"messages": one}) + "\n" for one in chats))
    said = "{% if m.role == 'user' %}Q: {{ m.content }} A: {% else %}{% generation %}{{ m.content }}{% endgeneration %}"
    (folder / "chat_template.jinja").write_text("{% for m in messages %}" + said + "{% endif %}{% endfor %}")


def packed_by_an_array(target: str, to: str) -> Work:
    """The work of `pack` into a folder of token files, by an array."""
    return by_an_array(functools.partial(packed_files, target, to))


def finished(name: str) -> Callable[[Path], Any]:
    """As `clean`, of a folder that is nothing yet while its index is missing."""

    def view(folder: Path) -> Any:
        if "://" not in name and (folder / name).is_dir() and not os.listdir(folder / name):
            raise NotFound("an empty folder", path=name)
        try:
            return clean(name)(folder)
        except PenstockError as error:
            if "unfinished" not in error.what:
                raise
            raise NotFound(error.what, path=name) from error

    return view


def indexed(flavor: str, workers: int = 1) -> Work:
    """The work of `index`."""

    def work(folder: Path, overwrite: bool) -> None:
        internals.build_index(folder / "a.jsonl", flavor=flavor, overwrite=overwrite, workers=workers)

    return work


def prepared(executor: str = "inline", workers: int | None = None, **sharing: Any) -> Work:
    """The work of `prepare`."""

    def work(folder: Path, overwrite: bool) -> None:
        internals.prepare_webdataset(
            folder / "set",
            split_ratio=(1, 0, 0),
            dataset=internals.DatasetOptions(sample_type="CrudeWebdataset"),
            executor=executor,
            workers=workers,
            overwrite=overwrite,
            **sharing,
        )

    return work


def media_prepared(**sharing: Any) -> Work:
    """The work of `prepare-media`."""
    return lambda folder, overwrite: penstock.prepare_media(folder / "media", executor="inline", **sharing)


def prepared_otherwise(folder: Path) -> None:
    internals.prepare_webdataset(folder / "set", split_ratio=(1, 1, 0), executor="inline")


def see_prepared(folder: Path) -> Any:
    """The samples of a dataset that is prepared."""
    if not (folder / "set" / ".nv-meta" / ".info.json").exists():
        raise NotFound("not prepared", path=folder / "set")
    return clean("set", raw=True)(folder)


def manifest(name: str) -> Work:
    """The work of `verify --write-manifest`."""
    return lambda folder, overwrite: internals.write_side_file(folder / name)


def repaired(name: str, **options: Any) -> Work:
    """The work of `repair --write`."""
    return lambda folder, overwrite: penstock.repair(folder / name, write=True, **options)


def mended(name: str, broken: bytes) -> Callable[[Path], Any]:
    """A file, and whether what stood there is still somewhere."""

    def view(folder: Path) -> Any:
        found = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
        return (folder / name).read_bytes(), broken in found

    return view


def many_lines(name: str, count: int) -> Setup:
    """A JSONL file that no tool of ours wrote."""
    text = "".join(json.dumps({"text": "x" * number}) + "\n" for number in range(count))
    return lambda folder: (folder / name).write_text(text)


def in_large_files(work: Work) -> Work:
    """Files of more than some bytes go to a store as large ones do: to a hidden name first."""

    def changed(folder: Path, overwrite: bool) -> None:
        with pytest.MonkeyPatch.context() as patch:
            internals.replace(patch, "one_put_bytes", 100)
            work(folder, overwrite)

    return changed


def as_it_is(work: Work) -> Work:
    return work


def without_links(work: Work) -> Work:
    """As on a file system where a file has one name."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    def changed(folder: Path, overwrite: bool) -> None:
        with mock.patch.object(os, "link", refuse):
            work(folder, overwrite)

    return changed


def broken_tars(folder: Path) -> None:
    """A prepared dataset with a damaged index of its samples, and without that of a shard."""
    write_tars(folder)
    prepared()(folder, False)
    (folder / "set" / ".nv-meta" / "index.sqlite").write_bytes(b"no database")
    next((folder / "set").rglob("*.tar.idx")).unlink()


def broken_index(name: str, index: str) -> Setup:
    """A JSONL file whose index is damaged."""

    def setup(folder: Path) -> None:
        lines(name)(folder, False)
        (folder / index).write_bytes((folder / index).read_bytes()[:-3])

    return setup


def broken_pair(folder: Path) -> None:
    """A pair whose index is cut."""
    tokens("out", format="megatron")(folder, False)
    (folder / "out.idx").write_bytes((folder / "out.idx").read_bytes()[:60])


def two_pbin(folder: Path) -> None:
    tokens("a.pbin", format="pbin")(folder, False)
    tokens("b.pbin", OLD_DOCUMENTS, format="pbin")(folder, False)


def two_jsonl(folder: Path) -> None:
    lines("a.jsonl")(folder, False)
    lines("b.jsonl", OLD_TEXTS)(folder, False)


def two_mds(folder: Path) -> None:
    rows("a", 9, format="mds")(folder, False)
    rows("b", 3, format="mds")(folder, False)


OLD_PBIN = once(tokens("out.pbin", OLD_DOCUMENTS, format="pbin"))
OLD_JSONL = once(lines("out.jsonl", OLD_TEXTS))
OLD_MDS = once(rows("out", 3, format="mds"))
OLD_PAIR = once(tokens("out", OLD_DOCUMENTS, format="megatron"))
OLD_GROUP = once(tokens("out.zarr", OLD_DOCUMENTS, format="flat-tokens", split="train"))
OLD_WHOLE = once(tokens("out.zarr", OLD_DOCUMENTS, format="flat-tokens"))
OLD_TARS = once(parts("out", 2, maxcount=2))
MERGED_PBIN = (GOLDEN / "merged.pbin").read_bytes()


# --- what is taken out -------------------------------------------------------------------------------------------


def at_one_time(work: Work) -> Work:
    """The same, with one time in all that says when."""
    internals.current("time_of_exclusion")  # imports it before all children

    def timed(folder: Path, overwrite: bool) -> None:
        with pytest.MonkeyPatch.context() as patch:
            internals.replace(patch, "time_of_exclusion", lambda: "2026-11-22T10:00:00+00:00")
            work(folder, overwrite)

    return timed


def excluding(name: str) -> Work:
    """Takes a sample out."""
    return at_one_time(
        lambda folder, _overwrite: penstock.exclude(folder / name, indices=[1], reason="asked", who="one")
    )


def with_excluded(setup: Setup, name: str) -> Setup:
    """Inputs of which one has an exclude list."""

    def made(folder: Path) -> None:
        setup(folder)
        excluding(name)(folder, False)

    return made


def listed(name: str) -> Callable[[Path], Any]:
    """What is excluded, which is nothing where there is no list."""
    samples = internals.excluded_samples
    return lambda folder: [one.index for one in samples(folder / name).entries]


def kept_of(*names: str) -> Callable[[Path], Any]:
    """What can be read of datasets and what not; nothing is there before its list is."""

    def view(folder: Path) -> Any:
        seen: list[Any] = []
        for name in names:
            try:
                source: Any = penstock.open(folder / name)
            except PrepareError:
                raise NotFound("not yet", path=folder / name) from None
            found = getattr(source, "excluded_indices", None)
            gone = set() if found is None else set(found.tolist())
            seen.append([None if n in gone else _plain(source[n]) for n in range(len(source))])
        return seen

    return view


def purged(name: str, output: str) -> Work:
    """The dataset without what its list takes out."""
    purge = internals.purge
    return at_one_time(lambda folder, overwrite: purge(folder / name, folder / output, overwrite=overwrite))


WRITERS = [
    writer("jsonl", lines("out.jsonl"), lines("out.jsonl", OLD_TEXTS), clean("out.jsonl")),
    writer(
        "jsonl for Energon",
        lines("out.jsonl", flavor="energon"),
        lines("out.jsonl", OLD_TEXTS, flavor="energon"),
        clean("out.jsonl", flavor="energon"),
    ),
    writer(
        "pbin",
        tokens("deep/out.pbin", format="pbin"),
        tokens("deep/out.pbin", OLD_DOCUMENTS, format="pbin"),
        clean("deep/out.pbin"),
    ),
    writer(
        "flat-tokens",
        tokens("out.zarr", format="flat-tokens", split="train"),
        tokens("out.zarr", OLD_DOCUMENTS, format="flat-tokens", split="train"),
        clean("out.zarr"),
    ),
    writer(
        "flat-tokens, compressed",
        tokens("out.zarr", format="flat-tokens", compressor="zstd", chunk_tokens=64),
        tokens("out.zarr", OLD_DOCUMENTS, format="flat-tokens"),
        clean("out.zarr"),
    ),
    writer("megatron", tokens("out", format="megatron"), tokens("out", OLD_DOCUMENTS, format="megatron"), clean("out")),
    writer(
        "megatron without hard links",
        without_links(tokens("out", format="megatron")),
        tokens("out", OLD_DOCUMENTS, format="megatron"),
        clean("out"),
    ),
    writer("mds", rows("out", 9, format="mds"), rows("out", 3, format="mds"), clean("out")),
    writer(
        "mds, compressed and hashed",
        rows("out", 9, format="mds", compression="zstd", hashes=["sha1"]),
        rows("out", 3, format="mds"),
        clean("out"),
    ),
    *(
        writer(name, rows("out", 9, format=name), rows("out", 3, format=name), clean("out"))
        for name in ("csv", "tsv", "json-shards")
    ),
    writer("webdataset", parts("out", 5, maxcount=2), parts("out", 2, maxcount=2), clean("out", raw=True)),
    writer("folder", parts("out", 3, format="folder"), parts("out", 2, format="folder"), clean("out", raw=True)),
]

VERBS = [
    Case("merge pbin", two_pbin, verb("merge", ("a.pbin", "b.pbin"), "out.pbin"), clean("out.pbin"), OLD_PBIN),
    Case("merge jsonl", two_jsonl, verb("merge", ("a.jsonl", "b.jsonl"), "out.jsonl"), clean("out.jsonl"), OLD_JSONL),
    Case("merge mds", two_mds, verb("merge", ("a", "b"), "out"), clean("out"), OLD_MDS),
    Case(
        "merge to megatron", two_pbin, verb("merge", ("a.pbin", "b.pbin"), "out", to="megatron"), clean("out"), OLD_PAIR
    ),
    Case("shuffle pbin", two_pbin, verb("shuffle", "a.pbin", "out.pbin", seed=7), clean("out.pbin"), OLD_PBIN),
    Case("shuffle jsonl", two_jsonl, verb("shuffle", "a.jsonl", "out.jsonl", seed=7), clean("out.jsonl"), OLD_JSONL),
    Case(
        "split pbin",
        two_pbin,
        verb("split", "a.pbin", "parts", ratio=(2, 1), seed=3),
        all_of(clean("parts/a_train.pbin"), clean("parts/a_validation.pbin")),
    ),
    Case(
        "split jsonl",
        two_jsonl,
        verb("split", "a.jsonl", "parts", ratio=(2, 1), seed=3),
        all_of(clean("parts/a_train.jsonl"), clean("parts/a_validation.jsonl")),
    ),
    Case("filter pbin", two_pbin, verb("filter", "a.pbin", "out.pbin", min_tokens=10), clean("out.pbin"), OLD_PBIN),
    Case("filter jsonl", two_jsonl, verb("filter", "a.jsonl", "out.jsonl", match="."), clean("out.jsonl"), OLD_JSONL),
    Case(
        "filter jsonl, by pieces",
        two_jsonl,
        verb("filter", "a.jsonl", "out.jsonl", match=".", workers=2),
        clean("out.jsonl"),
        OLD_JSONL,
    ),
    Case(
        "chunk pbin",
        two_pbin,
        verb("chunk", "a.pbin", "out.pbin", chunk_id=0, num_chunks=2),
        clean("out.pbin"),
        OLD_PBIN,
    ),
    Case("convert pbin", two_pbin, converted("a.pbin", "out.pbin"), clean("out.pbin"), OLD_PBIN),
    Case(
        "convert to flat-tokens", two_pbin, converted("a.pbin", "out.zarr", split="train"), clean("out.zarr"), OLD_GROUP
    ),
    Case("convert to megatron", two_pbin, converted("a.pbin", "out", to="megatron"), clean("out"), OLD_PAIR),
    Case(
        "convert to mds, in groups",
        two_jsonl,
        converted("a.jsonl", "out", to="mds", group_rows=1),
        clean("out"),
        OLD_MDS,
    ),
    Case("merge tars", write_tars, verb("merge", ("set",), "out"), clean("out", raw=True)),
    Case(
        "split tars",
        write_tars,
        verb("split", "set", "parts", ratio=(2, 1), seed=3),
        all_of(clean("parts/set_train", raw=True), clean("parts/set_validation", raw=True)),
    ),
    Case("filter mds", two_mds, verb("filter", "a", "out", indices=[0, 2, 5]), clean("out"), OLD_MDS),
    Case(
        "convert to tars",
        two_jsonl,
        converted("a.jsonl", "out", to="webdataset", columns={"text": "txt"}),
        clean("out", raw=True),
    ),
    Case("convert mds to jsonl", two_mds, converted("a", "out.jsonl"), clean("out.jsonl"), OLD_JSONL),
    *(
        Case(f"pack to {to}", write_pack_inputs, packed(name, to=to), clean(name), old)
        for to, name, old in (
            ("pbin", "out.pbin", OLD_PBIN),
            ("flat-tokens", "out.zarr", OLD_GROUP),
            ("megatron", "out", OLD_PAIR),
            ("mds", "out", OLD_MDS),
        )
    ),
    Case(
        "index",
        many_lines("a.jsonl", 40),
        indexed("modalities"),
        file_of("a.idx"),
        lambda folder: (folder / "a.idx").write_bytes(b"old"),
    ),
    Case(
        "index for Energon",
        many_lines("a.jsonl", 40),
        indexed("energon"),
        file_of("a.jsonl.idx"),
        lambda folder: (folder / "a.jsonl.idx").write_bytes(b"old"),
    ),
    Case("prepare", write_tars, prepared(), see_prepared, prepared_otherwise),
    Case("prepare-media", write_media, prepare_media_of, see_media, older_media),
    Case(
        "merged index",
        write_parts,
        lambda folder, overwrite: internals.merge_index(
            folder / "set", [folder / "set" / str(number) for number in (0, 1)], overwrite=overwrite
        ),
        file_of("set/index.json"),
    ),
    Case(
        "repair pbin",
        lambda folder: (folder / "out.pbin").write_bytes(MERGED_PBIN),
        repaired("out.pbin"),
        mended("out.pbin", MERGED_PBIN),
    ),
    Case(
        "repair mds",
        write_broken_index,
        repaired("set", format="mds"),
        mended("set/index.json", BROKEN_INDEX),
    ),
    Case("repair jsonl", broken_index("a.jsonl", "a.idx"), repaired("a.jsonl"), tried("a.jsonl")),
    Case("repair megatron", broken_pair, repaired("out", format="megatron", layout="uint16", eos_id=0), tried("out")),
    Case("repair webdataset", broken_tars, repaired("set"), tried("set", raw=True)),
    Case(
        "verify --write-manifest",
        lambda folder: (folder / "out.pbin").write_bytes((GOLDEN / "docs.bpe2.pbin").read_bytes()),
        manifest("out.pbin"),
        file_of("out.pbin.penstock"),
    ),
]

VERBS += [
    Case(
        f"pack to {name}",
        write_pack_inputs,
        work("out", to),
        finished("out"),
        once(packed_files("out", to, given=["b.jsonl"])),
    )
    for name, work, to in (
        ("files of pbin", packed_files, "pbin"),
        ("files of megatron", packed_files, "megatron"),
        ("files of flat-tokens", packed_files, "flat-tokens"),
        ("files of pbin, by an array", packed_by_an_array, "pbin"),
        ("files of flat-tokens, by an array", packed_by_an_array, "flat-tokens"),
    )
]

VERBS += [
    Case(f"pack conversations to {name}", write_chats, work, view)
    for name, work, view in (
        ("pbin", packed("out.pbin", given=["b.jsonl"], chat=True), clean("out.pbin")),
        ("megatron", packed("out", to="megatron", given=["b.jsonl"], chat=True), clean("out")),
        ("flat-tokens", packed("out.zarr", given=["b.jsonl"], chat=True), clean("out.zarr")),
        ("files of pbin", packed_files("out", "pbin", given=["b.jsonl"], chat=True), finished("out")),
    )
]

VERBS += [
    Case(f"pack, shuffled, to {name}", write_pack_inputs, work, view, old)
    for name, work, view, old in (
        ("pbin", packed("out.pbin", shuffle=7), clean("out.pbin"), OLD_PBIN),
        ("flat-tokens", packed("out.zarr", to="flat-tokens", shuffle=7), clean("out.zarr"), OLD_GROUP),
        ("files of pbin", packed_files("out", "pbin", shuffle=7), finished("out"), None),
    )
]

VERBS += [
    Case(
        f"pack to {name}, by an array",
        write_pack_inputs,
        by_an_array(functools.partial(packed, target, to=name)),
        clean(target),
        old,
    )
    for name, target, old in (
        ("pbin", "out.pbin", OLD_PBIN),
        ("megatron", "out", OLD_PAIR),
        ("flat-tokens", "out.zarr", OLD_GROUP),
    )
]

VERBS += [
    Case(
        f"convert to {name}, by an array",
        two_pbin,
        by_an_array(functools.partial(converted, "a.pbin", target, to=name)),
        clean(target),
        old,
    )
    for name, target, old in (("pbin", "out.pbin", OLD_PBIN), ("flat-tokens", "out.zarr", OLD_GROUP))
]

VERBS += [
    Case(
        "convert to files of pbin, by an array",
        two_pbin,
        by_an_array(functools.partial(converted, "a.pbin", "out", to="pbin", file_tokens=30)),
        finished("out"),
        once(converted("b.pbin", "out", to="pbin", file_tokens=30)),
    ),
    Case(
        "convert to mds, by an array",
        two_jsonl,
        by_an_array(functools.partial(converted, "a.jsonl", "out", to="mds", group_rows=1)),
        finished("out"),
        OLD_MDS,
    ),
    *(
        Case(f"{name}, by an array", setup, by_an_array(functools.partial(verb, *asked, **options)), view, old)
        for name, setup, asked, options, view, old in (
            ("merge mds", two_mds, ("merge", ("a", "b"), "out"), {}, clean("out"), OLD_MDS),
            (
                "filter to flat-tokens",
                two_pbin,
                ("filter", "a.pbin", "out.zarr"),
                {"min_tokens": 10, "to": "flat-tokens"},
                clean("out.zarr"),
                OLD_GROUP,
            ),
            ("merge pbin", two_pbin, ("merge", ("a.pbin", "b.pbin"), "out.pbin"), {}, clean("out.pbin"), OLD_PBIN),
            (
                "shuffle jsonl",
                two_jsonl,
                ("shuffle", "a.jsonl", "out.jsonl"),
                {"seed": 7},
                clean("out.jsonl"),
                OLD_JSONL,
            ),
            ("merge tars", write_tars, ("merge", ("set",), "out"), {}, clean("out", raw=True), OLD_TARS),
            (
                "split tars",
                write_tars,
                ("split", "set", "parts"),
                {"ratio": (2, 1), "by": "content"},
                all_of(clean("parts/set_train", raw=True), clean("parts/set_validation", raw=True)),
                None,
            ),
            (
                "split tars again",
                write_tars,
                ("split", "set", "parts"),
                {"ratio": (2, 1), "by": "content"},
                clean("parts/set_validation", raw=True),
                once(verb("split", "set", "parts", ratio=(2, 1), by="content", seed=8)),
            ),
        )
    ),
    Case("prepare, by an array", write_tars, by_an_array(prepared), see_prepared, prepared_otherwise),
    Case("prepare-media, by an array", write_media, by_an_array(media_prepared), see_media, older_media),
]

VERBS = [replace(one, finishes=True) for one in VERBS]

REMOTE = [
    Case(
        f"write {name} to s3",
        nothing,
        make(f"s3://{BUCKET}/{path}", new, **options),
        clean(f"s3://{BUCKET}/{path}", format=name),
        once(make(f"s3://{BUCKET}/{path}", old, **options)) if old else None,
        remote=True,
    )
    for name, path, make, new, old, options in (
        ("jsonl", "out.jsonl", lines, TEXTS, OLD_TEXTS, {}),
        ("pbin", "out.pbin", tokens, DOCUMENTS, OLD_DOCUMENTS, {"format": "pbin"}),
        ("mds", "out", rows, 9, None, {"format": "mds"}),  # a folder of files can't be replaced there
        ("csv", "out", rows, 9, None, {"format": "csv"}),
    )
]
REMOTE += [
    Case(
        f"write {name} to s3, in large files",
        nothing,
        in_large_files(make(f"s3://{BUCKET}/{path}", new, **options)),
        clean(f"s3://{BUCKET}/{path}", format=name),
        remote=True,
    )
    for name, path, make, new, options in (
        ("jsonl", "out.jsonl", lines, TEXTS, {}),
        ("pbin", "out.pbin", tokens, DOCUMENTS, {"format": "pbin"}),
        ("mds", "out", rows, 9, {"format": "mds"}),
    )
]

REMOTE += [
    Case(
        f"pack to {name} in s3",
        write_pack_inputs,
        work(f"s3://{BUCKET}/out", to),
        finished(f"s3://{BUCKET}/out"),
        once(packed_files(f"s3://{BUCKET}/out", to, given=["b.jsonl"])),
        remote=True,
        finishes=True,
    )
    for name, work, to in (
        ("files of pbin", packed_files, "pbin"),
        ("files of flat-tokens", packed_files, "flat-tokens"),
        ("files of pbin, by an array", packed_by_an_array, "pbin"),
    )
]
REMOTE += [
    Case(
        "convert to mds by an array in s3",
        two_jsonl,
        by_an_array(functools.partial(converted, "a.jsonl", f"s3://{BUCKET}/out", to="mds", group_rows=1)),
        finished(f"s3://{BUCKET}/out"),
        remote=True,
        finishes=True,
    ),
    Case(
        "pack to pbin by an array in s3",
        write_pack_inputs,
        by_an_array(functools.partial(packed, f"s3://{BUCKET}/out.pbin", to="pbin")),
        clean(f"s3://{BUCKET}/out.pbin"),
        remote=True,
        finishes=True,
    ),
]

PROCESSES = [
    Case(
        "pack to pbin by processes",
        write_pack_inputs,
        packed("out.pbin", executor="processes", workers=2),
        clean("out.pbin"),
        OLD_PBIN,
        workers=True,
        finishes=True,
    ),
    Case(
        "convert to mds by processes",
        two_jsonl,
        converted("a.jsonl", "out", to="mds", group_rows=1, executor="processes", workers=2),
        clean("out"),
        OLD_MDS,
        workers=True,
        finishes=True,
    ),
    Case(
        "prepare by processes",
        write_tars,
        prepared("processes", 2),
        see_prepared,
        prepared_otherwise,
        workers=True,
        finishes=True,
    ),
]

TAKEN_OUT = [
    Case("exclude", two_pbin, excluding("a.pbin"), listed("a.pbin"), finishes=True),
    *(
        Case(f"purge {name}", with_excluded(setup, name), purged(name, output), clean(output))
        for name, setup, output in (
            ("a.pbin", two_pbin, "out.pbin"),
            ("a.jsonl", two_jsonl, "out.jsonl"),
            ("a", two_mds, "out"),
        )
    ),
    *(
        Case(
            f"merge {name} with what is excluded",
            with_excluded(setup, name),
            verb("merge", (name,), output, keep_excluded=True, keep_map=True),
            kept_of(output),
        )
        for name, setup, output in (("a.pbin", two_pbin, "out.pbin"), ("a", two_mds, "out"))
    ),
    Case(
        "convert with what is excluded",
        with_excluded(two_mds, "a"),
        lambda folder, _overwrite: penstock.convert(folder / "a", folder / "out.jsonl", keep_excluded=True),
        kept_of("out.jsonl"),
    ),
]
"""A sample that goes, and one that is copied with its entry."""


# --- tokens with planes ------------------------------------------------------------------------------------------


def planed(name: str, documents: Sequence[Sequence[int]] = DOCUMENTS, **options: Any) -> Work:
    """A writer of tokens with two planes."""
    known = {"token_bytes": 2, "eos_id": 0} if options["format"] != "flat-tokens" else {}

    def work(folder: Path, overwrite: bool) -> None:
        path = name if "://" in name else folder / name
        planes = {"loss_mask": "bool", "weight": "float32"}
        with penstock.create(path, overwrite=overwrite, planes=planes, **known, **options) as writer:
            for document in documents:
                ids = np.array(document, np.uint16)
                writer.write({"tokens": ids, "loss_mask": ids % 3 == 0, "weight": ids.astype(np.float32) / 7})

    return work


def two_planed(folder: Path) -> None:
    planed("a.pbin", format="pbin")(folder, False)
    planed("b.pbin", OLD_DOCUMENTS, format="pbin")(folder, False)


PLANED = [
    *(
        writer(
            f"{format} with planes",
            planed(name, format=format),
            tokens(name, OLD_DOCUMENTS, format=format),
            clean(name),
            stays=True,
        )
        for format, name in (("pbin", "out.pbin"), ("megatron", "out"), ("flat-tokens", "out.zarr"))
    ),
    writer(
        "megatron with planes without hard links",
        without_links(planed("out", format="megatron")),
        tokens("out", OLD_DOCUMENTS, format="megatron"),
        clean("out"),
        stays=True,
    ),
    *(
        Case(f"{done} {name} with planes", setup, work, view, old, finishes=True, stays=True)
        for done, name, setup, work, view, old in (
            (
                "merge",
                "pbin",
                two_planed,
                verb("merge", ("a.pbin", "b.pbin"), "out.pbin"),
                clean("out.pbin"),
                OLD_PBIN,
            ),
            (
                "merge",
                "to megatron",
                two_planed,
                verb("merge", ("a.pbin", "b.pbin"), "out", to="megatron"),
                clean("out"),
                OLD_PAIR,
            ),
            ("shuffle", "pbin", two_planed, verb("shuffle", "a.pbin", "out.pbin", seed=7), clean("out.pbin"), OLD_PBIN),
            (
                "split",
                "pbin",
                two_planed,
                verb("split", "a.pbin", "parts", ratio=(2, 1), seed=3),
                all_of(clean("parts/a_train.pbin"), clean("parts/a_validation.pbin")),
                None,
            ),
            (
                "filter",
                "pbin",
                two_planed,
                verb("filter", "a.pbin", "out.pbin", min_tokens=10),
                clean("out.pbin"),
                OLD_PBIN,
            ),
            (
                "filter",
                "to flat-tokens",
                two_planed,
                verb("filter", "a.pbin", "out.zarr", min_tokens=10, to="flat-tokens"),
                clean("out.zarr"),
                OLD_WHOLE,
            ),
            (
                "chunk",
                "pbin",
                two_planed,
                verb("chunk", "a.pbin", "out.pbin", chunk_id=0, num_chunks=2),
                clean("out.pbin"),
                OLD_PBIN,
            ),
            ("convert", "pbin", two_planed, converted("a.pbin", "out.pbin"), clean("out.pbin"), OLD_PBIN),
            ("convert", "to megatron", two_planed, converted("a.pbin", "out", to="megatron"), clean("out"), OLD_PAIR),
            ("convert", "to flat-tokens", two_planed, converted("a.pbin", "out.zarr"), clean("out.zarr"), OLD_WHOLE),
            (
                "convert by an array",
                "pbin",
                two_planed,
                by_an_array(functools.partial(converted, "a.pbin", "out.pbin")),
                clean("out.pbin"),
                OLD_PBIN,
            ),
            (
                "convert by an array",
                "files of pbin",
                two_planed,
                by_an_array(functools.partial(converted, "a.pbin", "out", to="pbin", file_tokens=30)),
                finished("out"),
                None,
            ),
            (
                "merge by an array",
                "pbin",
                two_planed,
                by_an_array(functools.partial(verb, "merge", ("a.pbin", "b.pbin"), "out.pbin")),
                clean("out.pbin"),
                OLD_PBIN,
            ),
            (
                "split by an array",
                "pbin",
                two_planed,
                by_an_array(functools.partial(verb, "split", "a.pbin", "parts", ratio=(2, 1), seed=3)),
                all_of(clean("parts/a_train.pbin"), clean("parts/a_validation.pbin")),
                None,
            ),
            (
                "convert",
                "files of megatron",
                two_planed,
                converted("a.pbin", "out", to="megatron", file_tokens=30),
                finished("out"),
                None,
            ),
            (
                "purge",
                "pbin",
                with_excluded(two_planed, "a.pbin"),
                purged("a.pbin", "out.pbin"),
                clean("out.pbin"),
                None,
            ),
            (
                "merge",
                "pbin and what is excluded,",
                with_excluded(two_planed, "a.pbin"),
                verb("merge", ("a.pbin",), "out.pbin", keep_excluded=True, keep_map=True),
                kept_of("out.pbin"),
                None,
            ),
        )
    ),
    *(
        Case(
            f"write {name} with planes to s3{', in large files' if large else ''}",
            nothing,
            (in_large_files if large else as_it_is)(planed(f"s3://{BUCKET}/{path}", format=name)),
            clean(f"s3://{BUCKET}/{path}", format=name),
            remote=True,
        )
        for name, path in (("pbin", "out.pbin"), ("megatron", "out"), ("flat-tokens", "out.zarr"))
        for large in (False, True)
    ),
    *(
        Case(
            f"{done} with planes to s3",
            two_planed,
            work,
            clean(f"s3://{BUCKET}/{path}", format=format),
            remote=True,
        )
        for done, path, format, work in (
            ("merge pbin", "out.pbin", "pbin", verb("merge", ("a.pbin", "b.pbin"), f"s3://{BUCKET}/out.pbin")),
            ("shuffle pbin", "out.pbin", "pbin", verb("shuffle", "a.pbin", f"s3://{BUCKET}/out.pbin", seed=7)),
            ("convert to megatron", "out", "megatron", converted("a.pbin", f"s3://{BUCKET}/out", to="megatron")),
            (
                "convert to flat-tokens",
                "out.zarr",
                "flat-tokens",
                converted("a.pbin", f"s3://{BUCKET}/out.zarr", to="flat-tokens"),
            ),
        )
    ),
]
"""The tokens and their planes: both are there, or neither."""

CASES = [*WRITERS, *VERBS, *REMOTE, *PROCESSES, *TAKEN_OUT, *PLANED]
