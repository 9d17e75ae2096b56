"""The verbs on whole datasets over folders of shards: samples keep their bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import chunk, main

import penstock as ps
from penstock import filter, merge, shuffle, split
from penstock.errors import ConfigError, PenstockError, Unsupported
from penstock.types import Sample

WRITERS: dict[str, dict[str, Any]] = {
    "mds": {"format": "mds", "columns": {"s": "str", "n": "int"}, "size_limit": 500},
    "mds.zstd": {"format": "mds", "columns": {"s": "str", "n": "int"}, "size_limit": 500, "compression": "zstd:2"},
    "csv": {"format": "csv", "columns": {"s": "str", "n": "int"}, "size_limit": 90},
    "xsv.gz": {
        "format": "xsv",
        "columns": {"s": "str", "n": "int"},
        "size_limit": "90b",
        "separator": "|",
        "newline": "\r\n",
        "compression": "gz",
    },
    "json-shards": {"format": "json-shards", "columns": {"s": "str", "n": "int"}, "size_limit": None},
}


def samples(first: int, stop: int) -> list[Sample]:
    return [{"n": number, "s": f"text {number} " * (number % 4)} for number in range(first, stop)]


def make(folder: Path, content: list[Sample], name: str) -> Path:
    with ps.create(folder, hashes=["sha1"], **WRITERS[name]) as writer:
        for sample in content:
            writer.write(sample)
    return folder


def content(folder: Path | str) -> list[Sample]:
    assert ps.verify(folder, depth="full") == []
    return [dict(sorted(sample.items())) for sample in ps.open(folder)]


@pytest.mark.parametrize("name", WRITERS)
def test_all_verbs(name: str, tmp_path: Path) -> None:
    everything = samples(0, 80)
    first, second = make(tmp_path / "a", everything[:50], name), make(tmp_path / "b", everything[50:], name)
    report = merge([first, second], tmp_path / "merged")
    assert [count for _, count in report.inputs] == [50, 30]
    assert content(tmp_path / "merged") == everything
    shuffle(tmp_path / "merged", tmp_path / "shuffled", seed=3)
    stream = ps.Shuffle(ps.open(tmp_path / "merged"), seed=3, mode="global")
    order = [stream[place]["n"] for place in range(80)]
    assert order != sorted(order)
    assert [one["n"] for one in content(tmp_path / "shuffled")] == order
    parts = split(tmp_path / "merged", tmp_path / "parts", ratio=(3, 1))
    dealt = [content(part.path) for part in parts]
    assert [len(part) for part in dealt] == [60, 20]
    assert sorted(dealt[0] + dealt[1], key=lambda one: one["n"]) == everything
    filter(tmp_path / "merged", tmp_path / "filtered", where="n % 3 == 0 and len(s) > 5")
    fitting = [one for one in everything if one["n"] % 3 == 0 and len(one["s"]) > 5]
    assert content(tmp_path / "filtered") == fitting
    chunk(tmp_path / "merged", tmp_path / "chunk", chunk_id=1, num_chunks=4)
    assert content(tmp_path / "chunk") == everything[20:40]


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_written_are_the_bytes_of_a_fresh_writer(name: str, tmp_path: Path) -> None:
    source = make(tmp_path / "source", samples(0, 60), name)
    filter(source, tmp_path / "filtered", indices=list(range(0, 60, 2)))
    make(tmp_path / "fresh", samples(0, 60)[::2], name)
    for path in (tmp_path / "fresh").glob("[!.]*"):
        assert (tmp_path / "filtered" / path.name).read_bytes() == path.read_bytes()


def test_pickles_and_jpegs_go_over_untouched(tmp_path: Path) -> None:
    columns = {"p": "pkl", "j": "jpeg", "a": "ndarray"}
    with ps.create(tmp_path / "source", format="mds", columns=columns, size_limit=400) as writer:
        for number in range(20):
            writer.write({"p": {number}, "j": b"\xff\xd8 no jpeg at all", "a": np.arange(number + 1)})
    shuffle(tmp_path / "source", tmp_path / "out", seed=1)
    found = ps.open(tmp_path / "out", columns=["a"])
    assert sorted(len(one["a"]) for one in found) == list(range(1, 21))


def test_conditions_decode_only_the_columns_that_they_use(tmp_path: Path) -> None:
    with ps.create(tmp_path / "a", format="mds", columns={"n": "int", "image": "jpeg", "s": "str"}) as writer:
        for number in range(6):
            writer.write({"n": number, "image": b"not an image", "s": f"text {number}"})
    filter(tmp_path / "a", tmp_path / "b", where="n > 3")
    filter(tmp_path / "a", tmp_path / "c", match="[45]", field="s")
    for name in "bc":
        assert [(one["n"], one["image"]) for one in ps.open(tmp_path / name, raw=True)] == [
            (b"\4" + bytes(7), b"not an image"),
            (b"\5" + bytes(7), b"not an image"),
        ]
    with pytest.raises(PenstockError, match="image"):
        filter(tmp_path / "a", tmp_path / "d", where="image != None")


def test_equal_samples_share_a_part(tmp_path: Path) -> None:
    source = make(tmp_path / "source", samples(0, 40) * 2, "mds")
    parts = split(source, tmp_path / "parts", ratio=(1, 1), by="content")
    dealt = [{one["n"] for one in content(part.path)} for part in parts]
    assert dealt[0] | dealt[1] == set(range(40))
    assert not dealt[0] & dealt[1]


def test_match_looks_at_text(tmp_path: Path) -> None:
    source = make(tmp_path / "source", samples(0, 40), "csv")
    report = filter(source, tmp_path / "out", match=r"^text \d\b", field="s")
    assert [one["n"] for one in content(tmp_path / "out")] == [1, 2, 3, 5, 6, 7, 9]
    assert report.dropped == 33


def test_what_does_not_fit_together(tmp_path: Path) -> None:
    first = make(tmp_path / "a", samples(0, 5), "mds")
    other = make(tmp_path / "b", samples(0, 5), "csv")
    (tmp_path / "lines.jsonl").write_text('{"n": 1}\n')
    refused: list[tuple[type[PenstockError], Any]] = [
        (ConfigError, lambda: merge([first, other], tmp_path / "out")),
        (ConfigError, lambda: merge([first, tmp_path / "lines.jsonl"], tmp_path / "out")),
        (ConfigError, lambda: merge([first, first], first)),
        (Unsupported, lambda: merge([first], tmp_path / "out", to="csv")),
        (Unsupported, lambda: shuffle(first, tmp_path / "out", seed=1, to="csv")),
        (ConfigError, lambda: filter(first, tmp_path / "out", min_tokens=3)),
        (PenstockError, lambda: filter(first, tmp_path / "out", where="len(n) > 3")),
    ]
    for kind, verb in refused:
        with pytest.raises(kind):
            verb()
        assert not (tmp_path / "out").exists()


def test_an_empty_dataset_has_no_columns(tmp_path: Path) -> None:
    make(tmp_path / "empty", [], "mds")
    with pytest.raises(ConfigError, match="without shards"):
        shuffle(tmp_path / "empty", tmp_path / "out", seed=1)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "set" / "0", samples(0, 10), "mds")
    make(tmp_path / "set" / "1", samples(10, 15), "mds")
    given = [str(tmp_path / "set" / name) for name in ("0", "1")]
    for arguments, said in [
        (["merge", *given, "-o", str(tmp_path / "set"), "--no-copy"], "index of 2 shards"),
        (["split", str(tmp_path / "set"), "-o", str(tmp_path), "--ratio", "2,1"], "10 samples"),
    ]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert (ended.value.code, content(tmp_path / "set")) == (0, samples(0, 15))
        assert said in capsys.readouterr().out
