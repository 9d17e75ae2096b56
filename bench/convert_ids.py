"""How fast is a Parquet column of token ids packed, compared with pyarrow reading the column?"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import data
import numpy as np
from harness import DATA, PYTHON, Options, Result, alternate, answer, child, columns, limit, row

TARGET_READ, MOST_MB = 0.25, 768
_TOKENS, _GROUP_ROWS = 40_000_000, 10_000


def run(options: Options) -> Result:
    """Run Penstock and pyarrow in turn in child processes. The time to read back and compare isn't counted."""
    rows, peaks = [], []
    for dtype in ("int32", "int64"):
        source = data.made(f"ids-{dtype}.parquet", lambda path, dtype=dtype: _write(path, dtype))
        pairs = alternate(
            lambda source=source: child(PYTHON, __file__, "convert", source=source),
            lambda source=source: child(PYTHON, __file__, "read", source=source),
            options.pairs(5),
        )
        what = f"list of {dtype} → pbin, 2 bytes per token"
        rows.append(row(what, "MB/s", columns(pairs, "rate", "rate"), "pyarrow reading the column", TARGET_READ))
        peaks += [ours["peak_mb"] for ours, _ in pairs]
    rows.append(limit("peak memory", "MB", [max(peaks)], MOST_MB))
    notes = ["MB of 2-byte tokens on both sides. pyarrow decodes row groups in one thread and keeps nothing."]
    return Result(f"Convert {_TOKENS // 10**6} M token ids from Parquet", rows, notes)


def convert(source: str) -> dict[str, Any]:
    """Return MB/s including fsync, and peak memory; runs in a child process."""
    import penstock as ps

    target = DATA / "converted-ids.pbin"
    report = ps.convert(source, target, token_bytes=2, overwrite=True)
    for suffix in ("", ".penstock"):
        target.with_name(target.name + suffix).unlink(missing_ok=True)
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return {"rate": 2e-6 * _TOKENS / report.copy_seconds, "peak_mb": int(peak.split()[1]) / 1024}


def read(source: str) -> dict[str, float]:
    """Return MB/s of reading the column; runs in a child process."""
    import pyarrow.parquet

    started, tokens = time.perf_counter(), 0
    with pyarrow.parquet.ParquetFile(source) as file:
        for group in range(file.num_row_groups):
            found = file.read_row_group(group, columns=["input_ids"], use_threads=False).column(0)
            tokens += sum(len(chunk.values) for chunk in found.chunks)
    return {"rate": 2e-6 * tokens / (time.perf_counter() - started)}


def _write(path: Path, dtype: str) -> None:
    import pyarrow
    import pyarrow.parquet

    rng = np.random.default_rng(3)
    lengths = np.minimum(rng.lognormal(6, 0.8, _TOKENS // 400).astype(np.int64) + 1, 8000)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    offsets = np.append(offsets[offsets < _TOKENS], _TOKENS).astype(np.int32)
    ids = rng.zipf(1.2, _TOKENS) % 50_000
    lists = pyarrow.ListArray.from_arrays(offsets, pyarrow.array(ids.astype(dtype)))
    pyarrow.parquet.write_table(pyarrow.table({"input_ids": lists}), path, row_group_size=_GROUP_ROWS)


if __name__ == "__main__":
    answer(globals())
