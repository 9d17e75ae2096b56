"""Finishers of one plan on two hosts, whose output is one file in an object store: neither can see the other's lock."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.internals import JoinedStaged, Objects, RemoteClaim, is_lock, object_key, place_of

import penstock as ps
from penstock.errors import PrepareError
from penstock.store import resolve

OnHost = Callable[[str], Any]
VERBS: dict[str, str] = {
    "pack": "x.pbin",
    "pack to megatron": "x",
    "convert": "x.pbin",
    "filter": "x.pbin",
    "filter lines": "x.jsonl",
}
LAST = ("/x.pbin", "/x.bin", "/x.jsonl")


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> OnHost:
    """What runs in it is on a host of this name, with a cache folder of its own."""

    @contextmanager
    def on(name: str) -> Generator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(socket, "gethostname", lambda: name)
            patch.setenv("PENSTOCK_CACHE", str(tmp_path / f"cache-{name}"))
            yield

    return on


@pytest.fixture
def folder(s3_server: str, tmp_path: Path) -> str:
    return f"s3://bucket/{tmp_path.name}"


@pytest.fixture
def run(tmp_path: Path, golden: Path) -> Callable[..., Any]:
    """`run(verb, output, **options)`."""
    bpe2 = golden / "modalities" / "tokenizers" / "bpe2"
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps({"text": f"hello {n} world", "n": n}) + "\n" for n in range(40)))
    packed = tmp_path / "a.pbin"
    ps.pack(lines, packed, tokenizer=bpe2, executor="inline")

    def run(verb: str, output: str, **options: Any) -> Any:
        word, _, rest = verb.partition(" ")
        if word == "pack":
            return ps.pack(
                lines, output, tokenizer=bpe2, executor="inline", to=rest.removeprefix("to ") or None, **options
            )
        if word == "convert":
            return ps.convert(packed, output, **options)
        return ps.filter(lines if rest else packed, output, indices=range(30), **options)

    return run


def interrupted_at_commit(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object], *, after: bool) -> None:
    """Let something happen when the output's data are committed, or right after that."""
    commit = JoinedStaged.commit

    def commits(staged: JoinedStaged) -> None:
        if not staged.path.endswith(LAST):
            return commit(staged)
        monkeypatch.setattr(JoinedStaged, "commit", commit)
        if after:
            commit(staged)
        meanwhile()
        if not after:
            commit(staged)

    monkeypatch.setattr(JoinedStaged, "commit", commits)


def files(url: str) -> dict[str, bytes]:
    """All objects, hidden ones too."""
    store, root = resolve(url)
    remote: Any = getattr(store, "remote", store)
    keys = Objects(remote.base, remote.options).list(object_key(remote, root), first_only=False)
    return {key.rpartition("/")[2]: bytes(remote.get(f"{remote.base}/{key}")) for key in keys}


def nothing(claim: RemoteClaim) -> None:
    """The object stays, as of a host that is lost."""


def killed() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("verb", VERBS)
def test_who_comes_second_joins(
    verb: str, run: Callable[..., Any], folder: str, tmp_path: Path, on_host: OnHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = VERBS[verb]
    run(verb, str(tmp_path / "whole" / name))
    with on_host("a"):
        run(verb, f"{folder}/{name}", part=(0, 2))
        run(verb, f"{folder}/{name}", part=(1, 2))
    said: list[Any] = []

    def second() -> None:
        with on_host("b"):
            said.append(run(verb, f"{folder}/{name}", finish=True))

    interrupted_at_commit(monkeypatch, second, after=False)
    with on_host("a"):
        run(verb, f"{folder}/{name}", finish=True)
    assert len(said) == 1
    expected = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    assert files(folder) == expected


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("verb", VERBS)
def test_what_a_lost_host_left_is_finished_elsewhere(
    verb: str,
    run: Callable[..., Any],
    folder: str,
    tmp_path: Path,
    on_host: OnHost,
    monkeypatch: pytest.MonkeyPatch,
    after: bool,
) -> None:
    name = VERBS[verb]
    run(verb, str(tmp_path / "whole" / name))
    interrupted_at_commit(monkeypatch, killed, after=after)
    with on_host("a"), monkeypatch.context() as patch:
        patch.setattr(RemoteClaim, "_forget", nothing)
        with pytest.raises(KeyboardInterrupt):
            run(verb, f"{folder}/{name}", finish=True)
    assert any(is_lock(path) for path in files(folder))
    with on_host("b"):
        run(verb, f"{folder}/{name}", finish=True)
    expected = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    assert files(folder) == expected


def test_a_writer_of_other_work_is_refused(run: Callable[..., Any], folder: str, on_host: OnHost) -> None:
    url = f"{folder}/x.pbin"
    with on_host("a"):
        run("pack", url, part=(0, 1))
        other = RemoteClaim(place_of(url).store, place_of(url).path, "0123456789abcdef")
    with on_host("b"), pytest.raises(PrepareError, match="another machine"):
        run("pack", url, finish=True)
    with on_host("a"):
        other.release()
    with on_host("b"):
        run("pack", url, finish=True)
