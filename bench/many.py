"""Packing with several workers: driver CPU per GB, and the cost of many files."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import data
from harness import DATA, PYTHON, NotRun, Options, Result, answer, child, limit, row

DRIVER_BEFORE_S = 2.43
"""CPU per GB in version 0.1, whose driver copied and hashed every token."""

FILES, SMALL_FILES = 100_000, 2_000
RAY_PYTHON = Path(__file__).parent.parent / ".venvs" / "cluster" / "bin" / "python"
RAY_TASKS = 2_000
_OUT = DATA / "many"


def run(options: Options) -> Result:
    """Pack with one and two workers into a folder of token files, open 10^5 of them, and pack many small files."""
    large_text = data.text(data.LARGE_BYTES)
    gigabytes = (os.path.getsize(large_text) - os.path.getsize(data.text())) / 1e9
    count = options.pairs(3)
    _packed(2)  # one-time work of a host, such as checking the tokenizer
    packed = [(_packed(2), _packed(1)) for _ in range(count)]
    small = [(_packed(2, folder=_small_files()), _packed(2, folder=_one_file())) for _ in range(count)]
    large = [_packed(2, folder=large_text) for _ in range(count)]
    driver = [
        (one["driver_s"] - little["driver_s"]) / gigabytes for one, (little, _) in zip(large, packed, strict=True)
    ]
    opened = [child(PYTHON, __file__, "open_folder", folder=_folder_of_files()) for _ in range(count)]
    rows = [
        limit("driver CPU per additional GB of JSONL", "s", driver, DRIVER_BEFORE_S / 10),
        row("packing with two workers", "tokens/s", [(a["rate"], b["rate"]) for a, b in packed], "one worker"),
        row(
            f"packing {SMALL_FILES:,} small files", "s",
            [(a["seconds"], b["seconds"]) for a, b in small], "one file of the same lines",
        ),
        limit(f"CPU time to open a folder of {FILES:,} token files", "s", [one["seconds"] for one in opened], 1),
    ]  # fmt: skip
    notes = ["The first row excludes the fixed cost of a run, such as loading and checking the tokenizer."]
    notes += [
        f"In version 0.1, the driver took {DRIVER_BEFORE_S} s of CPU per GB because it copied and hashed every token."
    ]
    try:
        rows.append(limit("Ray: driver CPU per task", "s", [_ray_task_s()], 0.002))
    except NotRun as missing:
        notes.append(f"Ray: {missing}")
    return Result("Pack with several workers, and from many small files", rows, notes)


def _packed(workers: int, folder: Path | None = None) -> Any:
    shutil.rmtree(_OUT, ignore_errors=True)
    given = {"jsonl": folder or data.text(), "model": data.tokenizer(), "out": _OUT, "workers": workers}
    return child(PYTHON, __file__, "pack_folder", **given, eos=data.EOS)


def pack_folder(jsonl: str, model: str, out: str, workers: int, eos: str) -> dict[str, float]:
    """Return seconds, tokens per second, and the driver's own CPU seconds; runs in a child process."""
    from penstock.prepare import pack

    started = time.perf_counter()
    report = pack([jsonl], out, tokenizer=model, eos=eos, file_tokens=16_000_000, workers=workers)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "rate": report.tokens / seconds, "driver_s": _cpu_s()}


def open_folder(folder: str) -> dict[str, float]:
    """Return the CPU seconds to open the folder, without imports; runs in a child process."""
    import penstock as ps
    from penstock.formats.tokens import folder as _  # noqa: F401  (imported before the timing)

    before = _cpu_s()
    if len(ps.open(folder)) != 2 * FILES:
        raise ValueError("not all documents")
    return {"seconds": _cpu_s() - before}


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _folder_of_files() -> Path:
    """Return a folder whose index lists 10^5 missing files, which opening doesn't need."""
    from penstock.formats.tokens.folder.index import INDEX_NAME, TokenFileEntry, encode_index, token_file_name

    def make(path: Path) -> None:
        path.mkdir()
        digests = (f"2:{number:032x}:2" for number in range(FILES))
        entries = [
            TokenFileEntry(token_file_name(number, digest, "pbin"), 4000, 2, 65_000, digest)
            for number, digest in enumerate(digests)
        ]
        (path / INDEX_NAME).write_bytes(encode_index("pbin", entries))

    return data.made("token-files-100k", make)


def _small_files() -> Path:
    lines = data.text().read_bytes()[: 1 << 24].splitlines(keepends=True)[:-1]

    def make(path: Path) -> None:
        path.mkdir()
        for number in range(SMALL_FILES):
            (path / f"{number:05d}.jsonl").write_bytes(b"".join(lines[number::SMALL_FILES]))

    return data.made("small-files", make)


def _one_file() -> Path:
    def make(path: Path) -> None:
        path.write_bytes(b"".join(one.read_bytes() for one in sorted(_small_files().iterdir())))

    return data.made("small-files.jsonl", make)


def _ray_task_s() -> float:
    """Return the CPU seconds of a driver per empty task."""
    if not RAY_PYTHON.exists():
        raise NotRun("its environment is missing; `make cluster` creates it")
    script = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import many; many.ray_tasks()"
    lines = (Path(__file__).parent.parent / "tests" / "telemetry_off.env").read_text().splitlines()
    off = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    environment = {**os.environ, **off}
    done = subprocess.run([RAY_PYTHON, "-c", script], capture_output=True, text=True, env=environment, timeout=300)
    if done.returncode:
        raise NotRun(f"it failed to run: {done.stderr.strip().splitlines()[-1][:200]}")
    return json.loads(done.stdout.splitlines()[-1])["seconds"]


def ray_tasks() -> None:
    """Run empty tasks in Ray's environment, with two local workers."""
    from penstock.executors import make_executor

    with make_executor("ray", 2) as executor:
        list(executor.map(abs, range(8)))  # workers start
        before = _cpu_s()
        list(executor.map(abs, range(RAY_TASKS)))
        print(json.dumps({"seconds": (_cpu_s() - before) / RAY_TASKS}), flush=True)


if __name__ == "__main__":
    answer(globals())
