"""What verbs ask of a bucket grows with what they read and write, and no faster: counted at n and 10 n."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.internals import chunk, place_of, put
from tests.store.objects import counted_requests

import penstock as ps

VERBS: dict[str, Callable[[str, str], Any]] = {
    "merge": lambda source, out: ps.merge([source], out),
    "shuffle": partial(ps.shuffle, seed=1),
    "split": lambda source, out: ps.split(source, out, ratio=(2, 1)),
    "filter": partial(ps.filter, min_tokens=2),
    "chunk": partial(chunk, chunk_id=0, num_chunks=2),
    "convert": ps.convert,
}
NAMES = {"pbin": "x.pbin", "flat-tokens": "x.zarr", "webdataset": "x"}


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    return counted_requests(monkeypatch)


def make(url: str, format: str, count: int) -> None:
    options: dict[str, Any] = {"maxcount": 5} if format == "webdataset" else {"eos_id": 0}
    if format != "webdataset":
        options |= {"chunk_tokens": 256} if format == "flat-tokens" else {"token_bytes": 2}
    with ps.create(url, format=format, **options) as writer:
        for number in range(count):
            tokens = {"tokens": [*range(1, 50), 0]}
            writer.write({"__key__": f"k{number}", "txt": "text"} if format == "webdataset" else tokens)


@pytest.mark.parametrize(
    ("verb", "format"),
    [*((verb, "pbin") for verb in VERBS), ("merge", "webdataset"), ("shuffle", "flat-tokens")],
)
def test_requests_of_a_verb(verb: str, format: str, requests: list[str], s3_server: str, tmp_path: Path) -> None:
    counts: list[int] = []
    lists: list[int] = []
    for count in (15, 150):
        source = f"s3://bucket/requests/{tmp_path.name}/{count}/{NAMES[format]}"
        make(source, format, count)
        requests.clear()
        VERBS[verb](source, source.replace("/requests/", "/written/"))
        counts.append(len(requests))
        lists.append(requests.count("list"))
    assert counts[1] <= 12 * counts[0]
    assert lists[1] == lists[0], "what is listed does not grow at all"
    if format == "pbin":
        assert counts[1] == counts[0]


def test_requests_of_small_inputs(requests: list[str], s3_server: str, tmp_path: Path, golden: Path) -> None:
    """Of each two reads: its beginning, and all of it. What else `pack` must know of them, listings tell."""
    counts: list[Counter[str]] = []
    for count in (10, 100):
        source = place_of(f"s3://bucket/requests/{tmp_path.name}/{count}")
        for number in range(count):
            put(source.store, source.child(f"{number:03d}.jsonl").path, b'{"text": "one two"}\n')
        requests.clear()
        tokenizer = golden / "modalities" / "tokenizers" / "bpe2"
        ps.pack(source.path, f"{source.path}-out/", tokenizer=tokenizer, executor="inline")
        counts.append(Counter(requests))
    assert counts[1] - counts[0] == {"read": 2 * 90}


def test_requests_of_a_conversion_in_groups(requests: list[str], s3_server: str, tmp_path: Path) -> None:
    """Shards that are written as groups, copied and indexed."""
    counts: list[Counter[str]] = []
    for count in (2, 20):
        source = tmp_path / f"{count}.jsonl"
        source.write_text("".join(f'{{"n": {n}}}\n' for n in range(10 * count)))
        requests.clear()
        target = f"s3://bucket/requests/{tmp_path.name}/{count}-mds"
        report = ps.convert(source, target, to="mds", group_rows=10, workers=1)
        assert (report.samples, report.groups) == (10 * count, count)
        counts.append(Counter(requests))
    assert counts[1].total() <= 12 * counts[0].total()
    assert counts[1]["list"] == counts[0]["list"], "what is listed does not grow at all"
    assert counts[1]["head"] <= counts[0]["head"] + 16, "only files sampled for the fingerprint"
