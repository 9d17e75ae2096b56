"""What a small input file costs each verb, counted at n and at 10 n: opens, stats and syncs.

An open descriptor is looked at once more (`fstat`), whether it is a regular file: that is counted too. A stat is one by
name, or by a folder's entry.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.called import called

FEW, MANY, MOST = 100, 1000, 12
READS = ("open", "stat", "fstat", "fsync")
# verb, whether indexes lie beside → opens, stats, fstats and fsyncs of each input file, all files beside it counted
COSTS: dict[tuple[str, bool], tuple[int, ...]] = {
    ("pack", False): (1, 1, 1, 0),
    ("verify", False): (1, 0, 1, 0),
    ("verify", True): (2, 0, 2, 0),
    ("info", False): (1, 2, 1, 0),
    ("info", True): (2, 4, 2, 0),
    # Four of these ask whether an input was edited: when the work begins, when its lines are found, after they are
    # read, and before the commit.
    ("convert", False): (2, 6, 2, 0),
    ("convert", True): (3, 11, 3, 0),
    ("index", False): (2, 2, 1, 0),
    ("index", True): (2, 1, 2, 0),
}


class _Entry:
    """An entry of a folder, of which each `stat` is counted."""

    def __init__(self, entry: Any, calls: Counter[str]) -> None:
        self._entry, self._calls = entry, calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)

    def __fspath__(self) -> str:
        return str(self._entry.path)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        self._calls["stat"] += 1
        status: os.stat_result = self._entry.stat(follow_symlinks=follow_symlinks)
        return status


class _Listing:
    """A listing of a folder."""

    def __init__(self, listing: Any, calls: Counter[str]) -> None:
        self._listing, self._calls = listing, calls

    def __enter__(self) -> Iterator[_Entry]:
        return iter(self)

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[_Entry]:
        return map(self._seen, self._listing)

    def __next__(self) -> _Entry:
        return self._seen(next(self._listing))

    def _seen(self, entry: Any) -> _Entry:
        self._calls["names"] += 1
        return _Entry(entry, self._calls)

    def close(self) -> None:
        self._listing.close()


def counted(patch: pytest.MonkeyPatch, root: str) -> Counter[str]:
    """Calls for what lies below a folder, and all syncs."""
    calls: Counter[str] = Counter()
    ours: set[int] = set()

    def counting(name: str, call: Callable[..., Any], kind: str) -> None:
        def count(what: Any = ".", *given: Any, **more: Any) -> Any:
            is_ours = what in ours if isinstance(what, int) else os.fspath(what).startswith(root)
            if is_ours or kind == "fsync":
                calls[kind] += 1
            found = call(what, *given, **more)
            if kind == "open":
                (ours.add if is_ours else ours.discard)(found)
            calls["names"] += len(found) if name == "listdir" and is_ours else 0
            return _Listing(found, calls) if name == "scandir" and is_ours else found

        patch.setattr(os, name, count)

    kinds = {"lstat": "stat", "scandir": "listing", "listdir": "listing", "fdatasync": "fsync"}
    for name in ("open", "stat", "lstat", "fstat", "fsync", "fdatasync", "scandir", "listdir"):
        counting(name, getattr(os, name), kinds.get(name, name))
    return calls


@pytest.fixture
def bpe(tmp_path: Path) -> Path:
    """A tokenizer of single words."""
    vocab = {"<eos>": 0, "[UNK]": 1}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": 0, "content": "<eos>", **special}]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"version": "1.0", "added_tokens": added, "model": model}))
    return path


@pytest.mark.parametrize(("verb", "indexed"), COSTS)
def test_a_small_file_costs_the_same_among_many(verb: str, indexed: bool, tmp_path: Path, bpe: Path) -> None:
    words: dict[str, Callable[[str, str], list[str]]] = {
        "pack": lambda raw, out: [
            "pack",
            raw,
            "-o",
            f"{out}.pbin",
            "--tokenizer",
            str(bpe),
            "--eos",
            "<eos>",
            "--workers",
            "1",
        ],
        "convert": lambda raw, out: ["convert", raw, out, "--to", "mds"],
        "verify": lambda raw, _: ["verify", raw],
        "info": lambda raw, _: ["info", raw],
        "index": lambda raw, _: ["index", raw],
    }
    costs: list[Counter[str]] = []
    for n in (FEW, MANY):
        raw = tmp_path / f"raw{n}"
        raw.mkdir()
        for number in range(n):
            (raw / f"{number:04d}.jsonl").write_text("".join(f'{{"text": "{number}-{line}"}}\n' for line in range(15)))
        if indexed:
            assert called("index", raw).returncode == 0
        with pytest.MonkeyPatch.context() as patch:
            calls = counted(patch, str(raw))
            done = called(*words[verb](str(raw), str(tmp_path / f"out{n}")))
        assert done.returncode == 0, done.stderr
        costs.append(calls)
    few, many = costs
    assert {name: (few[name], many[name]) for name in many if many[name] > MOST * max(1, few[name])} == {}
    # Of some files a fingerprint, or a plan, reads the beginning besides: of as many at 10 n as at n.
    each = tuple(round((many[name] - few[name]) / (MANY - FEW), 1) for name in READS)
    assert each == COSTS[verb, indexed]
    assert many["listing"] == few["listing"]  # formats are asked one after the other whether the folder is theirs
