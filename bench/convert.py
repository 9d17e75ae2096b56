"""How fast are packed files converted to flat-tokens and Megatron and back, compared with a plain copy?"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import data
from harness import DATA, PYTHON, Options, Result, alternate, answer, child, columns, limit, row

TARGET_COPY, MOST_MB = 0.5, 512
_COPY_STEP_BYTES = 1 << 22
_TIMES, _LARGE_TIMES = 4, 20
_WAYS = (("pbin", "flat-tokens"), ("flat-tokens", "pbin"), ("pbin", "megatron"), ("megatron", "pbin"))


def run(options: Options) -> Result:
    """Run conversions and copies of the same size in turn in child processes. Both end with fsync."""
    times = _LARGE_TIMES if options.large else _TIMES
    packed = data.packed_tokens(times)
    rows, peaks, verify = [], [], []
    for source_format, to in _WAYS:
        source = packed if source_format == "pbin" else converted(packed, source_format)
        pairs = alternate(
            lambda source=source, to=to: child(PYTHON, __file__, "convert", source=source, to=to),
            lambda to=to: child(PYTHON, __file__, "copy", size_bytes=os.path.getsize(packed) * (1 + (to[0] == "f"))),
            options.pairs(5),
        )
        what = f"{source_format} → {to}"
        rows.append(row(what, "MB/s", columns(pairs, "rate", "rate"), "copying the same number of bytes", TARGET_COPY))
        peaks += [ours["peak_mb"] for ours, _ in pairs]
        verify += [ours["verify_rate"] for ours, _ in pairs]
    rows.append(limit("peak memory", "MB", [max(peaks)], MOST_MB))
    size_mb = os.path.getsize(packed) / 1e6
    return Result(
        f"Convert {60 * times} M tokens of 2 bytes",
        rows,
        [
            f"MB written. The packed file has {size_mb:,.0f} MB, the flat-tokens group twice as many.",
            f"Excludes reading back and comparing, which runs at {min(verify):,.0f} MB/s or more.",
        ],
    )


def convert(source: str, to: str) -> dict[str, Any]:
    """Return MB/s written, MB/s read back, and peak memory; runs in a child process."""
    import penstock as ps

    target = DATA / f"converted-{to}"
    _remove(target)
    report = ps.convert(source, target, to=to)
    _remove(target)
    # Not `ru_maxrss`, which includes the peak of the parent process.
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return {
        "rate": report.size_bytes * 1e-6 / report.copy_seconds,
        "verify_rate": report.size_bytes * 1e-6 / report.verify_seconds,
        "peak_mb": int(peak.split()[1]) / 1024,
    }


def copy(size_bytes: int) -> dict[str, float]:
    """Copy a cached file of `size_bytes` and sync it; runs in a child process."""
    block = os.urandom(_COPY_STEP_BYTES)
    source, target = DATA / "copy-from", DATA / "copy-to"
    with source.open("wb") as file:
        for _ in range(-(-size_bytes // len(block))):
            file.write(block)
        os.fsync(file.fileno())
    started = time.perf_counter()
    with source.open("rb", buffering=0) as old, target.open("wb", buffering=0) as new:
        while piece := old.read(_COPY_STEP_BYTES):
            new.write(piece)
        os.fsync(new.fileno())
    seconds = time.perf_counter() - started
    source.unlink()
    target.unlink()
    return {"rate": size_bytes * 1e-6 / seconds}


def converted(packed: Path, to: str) -> Path:
    """Return the packed file in another format, converted once."""
    import penstock as ps

    target = DATA / f"{packed.stem}-{to}"
    if not (target.exists() or target.with_name(target.name + ".idx").exists()):
        print(f"  creating {target.name} …", flush=True)
        ps.convert(packed, target, to=to)
    return target


def _remove(target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    for suffix in ("", ".penstock", ".bin", ".idx", ".idx.penstock"):
        if target.with_name(target.name + suffix).is_file():
            target.with_name(target.name + suffix).unlink()


if __name__ == "__main__":
    answer(globals())
