"""The verbs over datasets of an object store: the same bytes as over local ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.internals import ShardWriter, chunk

import penstock as ps
from penstock import filter as filter_rows
from penstock import merge, shuffle, split
from penstock.convert import convert
from penstock.store import resolve

NAMES = ("a.pbin", "a.jsonl", "mds", "m/a.bin")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, s3_server: str) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name, format in (("a.pbin", "pbin"), ("m/a.bin", "megatron")):
        with ps.create(folder / name, format=format, token_bytes=2) as writer:
            for size in range(2, 30):
                writer.write({"tokens": [*range(1, size), 0]})
    (folder / "a.jsonl").write_text("".join(f'{{"n": {number}}}\n' for number in range(30)))
    with ps.create(folder / "mds", format="mds", columns={"n": "int"}) as writer:
        for number in range(30):
            writer.write({"n": number})
    store, root = resolve("s3://bucket/reshape")
    for one in folder.rglob("*"):
        if one.is_file():
            staged = store.stage(f"{root}/{one.relative_to(folder)}")
            staged.write(one.read_bytes())
            staged.commit()
    return folder


def made(verb: str, source: str, folder: Path) -> dict[str, bytes]:
    name = source.rpartition("/")[2]
    target = folder / name
    if verb == "merge":
        merge([source, source], target)
    elif verb == "shuffle":
        shuffle(source, target, seed=3)
    elif verb == "split":
        split(source, folder, ratio=(1, 1))
    elif verb == "filter":
        filter_rows(source, target, indices=[1, 5, 7])
    elif verb == "chunk":
        chunk(source, target, chunk_id=1, num_chunks=3)
    else:
        convert(source, target, to={"a.pbin": "megatron", "a.bin": "pbin", "mds": "csv"}[name])
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


VERBS = ("merge", "shuffle", "split", "filter", "chunk", "convert")
CASES = [(verb, name) for verb in VERBS for name in NAMES if (verb, name) != ("convert", "a.jsonl")]  # needs columns


@pytest.mark.parametrize(("verb", "name"), CASES)
def test_as_from_a_disk(verb: str, name: str, data: Path, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    expected = made(verb, str(data / name), here)
    assert expected
    assert made(verb, f"s3://bucket/reshape/{name}", there) == expected


def test_a_split_that_was_killed_behind_a_part_goes_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    real = ShardWriter.commit

    def killed(self: Any) -> Any:
        if ended:
            raise KeyboardInterrupt
        ended.append("one")
        return real(self)

    monkeypatch.setattr(ShardWriter, "commit", killed)
    with pytest.raises(KeyboardInterrupt):
        split(data / "mds", "s3://bucket/killed", ratio=(1, 1))
    monkeypatch.undo()
    (tmp_path / "here").mkdir()
    expected = made("split", str(data / "mds"), tmp_path / "here")
    split(data / "mds", "s3://bucket/killed", ratio=(1, 1))
    store, root = resolve("s3://bucket/killed")
    found = {path.removeprefix(f"{root}/"): bytes(store.get(path)) for path in store.list(root)}
    assert found == expected
