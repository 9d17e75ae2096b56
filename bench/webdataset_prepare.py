"""How fast are tars prepared for Energon, and JSONL files indexed?"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import data
import index_1gb_no_validate
import tars
from harness import DATA, PENSTOCK, PYTHON, Options, Result, alternate, answer, child, columns, command_seconds, row
from peers import energon

TARGET_SMALL, TARGET_LARGE, TARGET_JSONL = 6, 3, 0.5
_FLAGS = ("--non-interactive", "--split-ratio", "1,0,0", "--no-progress")


def run(options: Options) -> Result:
    """Time whole commands and only the preparation, in turn, each on its own copy of the same tars."""
    rows = []
    count = options.pairs(3)
    for what, made, target in (
        ("40,000 samples of 2 KB", tars.small(), TARGET_SMALL),
        ("2,000 samples of 100 KB", tars.large(), TARGET_LARGE),
    ):
        ours, theirs = _copy(made, "ours"), _copy(made, "theirs")
        whole = alternate(
            lambda ours=ours: command_seconds(
                [PENSTOCK, "energon", "prepare", ours, *_FLAGS], lambda: tars.unprepare(ours)
            ),
            lambda theirs=theirs: command_seconds(
                energon.command("prepare", theirs, *_FLAGS), lambda: tars.unprepare(theirs)
            ),
            count,
        )
        inner = alternate(
            lambda ours=ours: child(PYTHON, __file__, "prepare", path=ours),
            lambda theirs=theirs: _theirs(theirs),
            count,
        )
        rows.append(row(f"{what}, whole command", "s", whole, energon.NAME, target))
        rows.append(row(f"{what}, without startup", "s", columns(inner, "seconds", "seconds"), energon.NAME))
        shutil.rmtree(ours)
        shutil.rmtree(theirs)
    jsonl = data.short_lines(data.TEXT_BYTES if options.quick else data.LARGE_BYTES)
    pairs = child(PYTHON, __file__, "jsonl", path=jsonl, count=options.pairs(5))
    what = "index JSONL in lines of 1 KB (numpy: find the newlines)"
    rows.append(row(what, "MB/s", [tuple(pair) for pair in pairs], "numpy scan", TARGET_JSONL))
    return Result(
        "Prepare WebDatasets and JSONL for Energon",
        rows,
        [
            "Both create the same files. The samples of 2 KB are in 8 tars of 5,000, each with a small JSON part.",
            "The scan runs `numpy.flatnonzero(block == 10)` on blocks of 1 MiB in one thread and writes nothing.",
        ],
    )


def prepare(path: str) -> dict[str, float]:
    """Return the seconds of a whole preparation; runs in a child process."""
    from penstock.prepare.energon.run import prepare_webdataset

    tars.unprepare(Path(path))
    started = time.perf_counter()
    prepare_webdataset(path, split_ratio=(1, 0, 0))
    return {"seconds": time.perf_counter() - started}


def jsonl(path: str, count: int) -> list[tuple[float, float]]:
    """Return pairs of MB/s; runs in a child process."""
    from penstock.prepare.jsonl_index import build_index

    size_mb = Path(path).stat().st_size / 1e6
    _seconds(lambda: index_1gb_no_validate.scan(path))
    made = [
        (
            _seconds(lambda: build_index(path, flavor="energon", overwrite=True)),
            _seconds(lambda: index_1gb_no_validate.scan(path)),
        )
        for _ in range(count)
    ]
    return [(size_mb / ours, size_mb / scan) for ours, scan in made]


def _theirs(path: Path) -> Any:
    tars.unprepare(path)
    (path / ".nv-meta").mkdir()
    shards = sorted(file.name for file in path.glob("*.tar"))
    return energon.inside("prepare", path=path, shards=shards, workers=2)


def _copy(made: Path, name: str) -> Path:
    target = DATA / f"{made.name}-{name}"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for tar in made.glob("*.tar"):
        shutil.copyfile(tar, target / tar.name)
    return target


def _seconds(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    answer(globals())
