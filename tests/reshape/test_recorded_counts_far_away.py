"""Samples of remote data that a side file counts and that are missing aren't left out of a copy; what that costs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import place_of, put
from tests.reshape.test_recorded_counts import CASES, FORMATS, REFUSED, VERBS, damage, make
from tests.store.objects import counted_requests

import penstock as ps
from penstock.errors import Corrupt
from penstock.testing import FileServer

BY_LISTS = ("folder", "jsonl-files")  # formats whose files only a listing names, which web servers don't have


@pytest.fixture
def upload(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Path], tuple[str, list[Any]]]]:
    """Copy a folder to a remote store under a new name; return its URL and the list of requests, which grows."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    with contextlib.ExitStack() as stack:
        if request.param == "s3":
            request.getfixturevalue("s3_server")
            requests: list[Any] = counted_requests(monkeypatch)
            root = f"s3://bucket/far-away/{tmp_path.name}"
        else:
            server = stack.enter_context(FileServer({}))
            root, requests = server.url, server.log
        count = 0

        def copy(folder: Path) -> tuple[str, list[Any]]:
            nonlocal count
            count += 1
            for file in folder.rglob("*"):
                name = f"{count}/{file.relative_to(folder)}"
                if not file.is_file():
                    continue
                if request.param == "s3":
                    place = place_of(f"{root}/{name}")
                    put(place.store, place.path, file.read_bytes())
                else:
                    server.files[name] = file.read_bytes()
            return f"{root}/{count}", requests

        yield copy


def outputs(tmp_path: Path, format: str, verb: str) -> list[Path]:
    suffix = ".jsonl" if format == "jsonl" and verb not in ("convert", "split") else ""
    return [tmp_path / f"out-{number}{suffix}" for number in range(3)]


ON = [
    (store, format, verb)
    for store in ("s3", "http")
    for format, verb in CASES
    if store == "s3" or format not in BY_LISTS
]


@pytest.mark.parametrize(("upload", "format", "verb"), ON, indirect=["upload"])
def test_missing_samples_are_not_left_out_of_a_copy(
    upload: Callable[[Path], tuple[str, list[Any]]], tmp_path: Path, format: str, verb: str
) -> None:
    """Whole data is copied; what its side file contradicts isn't; without a side file it's copied again."""
    folder = tmp_path / "in"
    folder.mkdir()
    source = make(folder, format)
    out = outputs(tmp_path, format, verb)
    url = f"{upload(folder)[0]}/{source.name}"
    VERBS[verb](url, out[0], format)  # type: ignore[arg-type]
    damage(source, format)
    url = f"{upload(folder)[0]}/{source.name}"
    with pytest.raises(Corrupt, match=REFUSED):
        VERBS[verb](url, out[1], format)  # type: ignore[arg-type]
    assert not out[1].exists()
    for side in (*folder.glob("*.penstock"), *source.glob("*.penstock")):
        side.unlink()
    url = f"{upload(folder)[0]}/{source.name}"
    VERBS[verb](url, out[2], format)  # type: ignore[arg-type]


def write_tokens(folder: Path, format: str) -> Path:
    """Write 30 documents; return the file of tokens."""
    path = folder / ("data.pbin" if format == "pbin" else "data")
    options: dict[str, Any] = {"vocab_size": 1000} if format == "pbin" else {"dtype": "uint16"}
    with ps.create(path, format=format, **options) as writer:
        for number in range(30):
            writer.write({"tokens": np.array([number, 1], "uint16")})
    return folder / "data.bin" if format == "megatron" else path


@pytest.mark.parametrize("upload", ["s3", "http"], indirect=True)
@pytest.mark.parametrize("format", ["pbin", "megatron"])
@pytest.mark.parametrize("verb", ["convert", "merge", "filter"])
def test_tokens_that_differ_from_their_side_file_are_not_copied(
    upload: Callable[[Path], tuple[str, list[Any]]], tmp_path: Path, format: str, verb: str
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    file = write_tokens(folder, format)
    data = bytearray(file.read_bytes())
    data[20] ^= 1  # a token among those that a side file knows without digests
    file.write_bytes(data)
    url = f"{upload(folder)[0]}/{file.name.removesuffix('.bin')}"
    copies: dict[str, Callable[..., object]] = {
        "convert": lambda out: ps.convert(url, out, to="pbin"),
        "merge": lambda out: ps.merge([url], out),
        "filter": lambda out: ps.filter(url, out, min_tokens=1),
    }
    with pytest.raises(Corrupt, match=REFUSED):
        copies[verb](tmp_path / "out.pbin")
    assert not (tmp_path / "out.pbin").exists()


COSTED = [(store, format) for store in ("s3", "http") for format in FORMATS if store == "s3" or format not in BY_LISTS]


@pytest.mark.parametrize(("upload", "format"), COSTED, indirect=["upload"])
def test_requests_do_not_grow_with_samples(
    upload: Callable[[Path], tuple[str, list[Any]]], tmp_path: Path, format: str
) -> None:
    """Ten times as many samples in one shard are copied by as many requests; a folder takes one more for each file."""
    counts: list[int] = []
    for samples in (30, 300):
        (tmp_path / f"in-{samples}").mkdir()
        source = make(tmp_path / f"in-{samples}", format, samples, in_one=True)
        root, requests = upload(tmp_path / f"in-{samples}")
        before = len(requests)
        VERBS["convert"](f"{root}/{source.name}", tmp_path / f"out-{samples}", format)  # type: ignore[arg-type]
        counts.append(len(requests) - before)
    growth = counts[1] - counts[0] - (2 * 270 if format == "folder" else 0)
    assert 0 <= growth <= (2 if format == "webdataset" else 0)  # large tars are read in pieces
