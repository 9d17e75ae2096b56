"""What changed on the disk under its side file is not copied: a copy would get a side file that blesses it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import chunk

import penstock as ps
from penstock import filter, merge, shuffle, split
from penstock.convert import convert
from penstock.errors import Corrupt, Unsupported

DOCUMENTS = 400


def documents(seed: int = 1) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [np.append(rng.integers(1, 900, rng.integers(20, 120)), 0).astype(np.uint16) for _ in range(DOCUMENTS)]


def made(folder: Path, kind: str) -> Path:
    """A dataset of some kind."""
    plain = folder / "plain.pbin"
    with ps.create(plain, format="pbin", token_bytes=2, eos_id=0) as writer:
        for one in documents():
            writer.write({"tokens": one})
    if kind == "pbin":
        return plain
    name = {"megatron": "data.idx", "flat-tokens": "data.zarr", "folder": "data", "joined": "joined.pbin"}[kind]
    target = folder / name
    if kind == "folder":
        convert(plain, target, to="pbin", file_tokens=9000)
    elif kind == "joined":  # by parts: its side file has digests of documents
        for i in range(2):
            convert(plain, target, part=(i, 2))
        convert(plain, target, finish=True)
    else:
        convert(plain, target, to=kind)
    return target


def flip(dataset: Path, kind: str) -> None:
    """One bit in the middle of a file of tokens."""
    if kind == "megatron":
        file = dataset.with_suffix(".bin")
    elif kind == "flat-tokens":
        file = max((one for one in dataset.rglob("*") if one.is_file()), key=lambda one: one.stat().st_size)
    else:
        file = sorted(dataset.glob("part-*.pbin"))[1] if kind == "folder" else dataset
    data = bytearray(file.read_bytes())
    data[min(len(data) // 4, 40_000)] ^= (
        2  # behind what is looked at when a file is opened, and before what pads a chunk
    )
    file.write_bytes(data)


def by_parts(verb: Callable[..., object], *given: Any, **options: Any) -> None:
    for i in range(2):
        verb(*given, part=(i, 2), **options)
    verb(*given, finish=True, **options)


VERBS: dict[str, Callable[[Path, Path], object]] = {
    "convert": lambda source, out: convert(source, out, to="pbin"),
    "convert-strip": lambda source, out: convert(source, out, to="pbin", eos=("strip", 0)),
    "convert-parts": lambda source, out: by_parts(convert, source, out, to="pbin"),
    "convert-files": lambda source, out: convert(source, out.parent / "out", to="pbin", file_tokens=7000),
    "merge": lambda source, out: merge([source], out, to="pbin"),
    "merge-wider": lambda source, out: merge([source], out, to="pbin", token_bytes=4),
    "merge-workers": lambda source, out: merge([source], out, to="pbin", workers=2),
    "merge-parts": lambda source, out: by_parts(merge, [source], out, to="pbin"),
    "filter": lambda source, out: filter(source, out, min_tokens=1, to="pbin"),
    "filter-parts": lambda source, out: by_parts(filter, source, out, min_tokens=1, to="pbin"),
    "shuffle": lambda source, out: shuffle(source, out, seed=3, to="pbin"),
    "shuffle-workers": lambda source, out: shuffle(source, out, seed=3, to="pbin", workers=2),
    "shuffle-parts": lambda source, out: by_parts(shuffle, source, out, seed=3, to="pbin"),
    "split": lambda source, out: split(source, out.parent / "out", ratio=(1, 1), to="pbin"),
    "chunk": lambda source, out: chunk(source, out, chunk_id=0, num_chunks=1, to="pbin"),
}


@pytest.mark.parametrize("kind", ["pbin", "megatron", "flat-tokens", "folder", "joined"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_flipped_bit_is_not_copied(tmp_path: Path, kind: str, verb: str) -> None:
    source, out = made(tmp_path, kind), tmp_path / "out.pbin"
    if (verb, kind) == ("shuffle-parts", "flat-tokens"):
        with pytest.raises(Unsupported, match="random access"):
            VERBS[verb](source, out)
        return
    sound = tmp_path / "sound"
    sound.mkdir()
    VERBS[verb](source, sound / "out.pbin")
    flip(source, kind)
    with pytest.raises(Corrupt) as caught:
        VERBS[verb](source, out)
    assert "side file" in str(caught.value) or "digest" in str(caught.value)
    assert not out.exists()
    assert not [*(tmp_path / "out").glob("index.json"), *(tmp_path / "out").glob("*.pbin.penstock")]


def test_data_that_contradict_their_side_file_at_an_edge_are_not_copied(tmp_path: Path) -> None:
    source, out = made(tmp_path, "pbin"), tmp_path / "out.pbin"
    data = bytearray(source.read_bytes())
    data[16] ^= 2
    source.write_bytes(data)
    for verb in ("merge", "convert", "convert-strip", "chunk", "convert-parts"):
        with pytest.raises(Corrupt, match="side file"):
            VERBS[verb](source, out)
        assert not out.exists()


def test_lines_that_changed_are_not_copied(tmp_path: Path) -> None:
    source, out = tmp_path / "lines.jsonl", tmp_path / "out.jsonl"
    with ps.create(source, format="jsonl") as writer:
        for number in range(3000):
            writer.write({"text": f"line {number}"})
    data = bytearray(source.read_bytes())
    data[len(data) // 2] ^= 1
    source.write_bytes(data)
    for verb in (
        lambda: merge([source], out),
        lambda: shuffle(source, out, seed=1),
        lambda: by_parts(merge, [source], out),
    ):
        with pytest.raises(Corrupt, match="side file"):
            verb()
        assert not out.exists()


def test_without_a_side_file_all_is_taken_as_it_is(tmp_path: Path) -> None:
    source, out = made(tmp_path, "pbin"), tmp_path / "out.pbin"
    flip(source, "pbin")
    source.with_name("plain.pbin.penstock").unlink()
    merge([source], out)
    assert ps.open(out).num_tokens == ps.open(source).num_tokens


@pytest.mark.parametrize("verb", ["convert", "convert-parts", "merge", "shuffle", "filter", "split", "chunk"])
def test_planes_whose_index_is_gone_are_not_left_behind(tmp_path: Path, verb: str) -> None:
    source, out = tmp_path / "in.pbin", tmp_path / "out.pbin"
    with ps.create(source, format="pbin", token_bytes=2, eos_id=0, planes={"loss_mask": "bool"}) as writer:
        for one in documents():
            writer.write({"tokens": one, "loss_mask": one > 5})
    source.with_name("in.pbin.planes").unlink()
    with pytest.raises(Corrupt, match=r"no index lists|is recorded in the side file but missing"):
        VERBS[verb](source, out)
    assert not out.exists()
    merge([source], out, drop_planes=True)
