"""How many MDS samples of 4 KB a second are written, each shard with a hash?"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import shards
from harness import DATA, PYTHON, Failed, Options, Result, alternate, answer, child, columns, row
from peers import streaming

HASHES = ["sha1"]
TARGET = 1.5


def run(options: Options) -> Result:
    """Both write the same 200 MB; ours are synced to disk before they are visible."""
    payloads = shards.payloads()
    ours, theirs = DATA / "written.ours", DATA / "written.theirs"
    size_bytes = shards.TOKEN_BYTES
    pairs = alternate(
        lambda: child(PYTHON, __file__, "write", out=ours, payloads=payloads, hashes=HASHES),
        lambda: streaming.inside("write", out=theirs, payloads=payloads, size_bytes=size_bytes, hashes=HASHES),
        options.pairs(5),
    )
    plain = alternate(
        lambda: child(PYTHON, __file__, "write", out=ours, payloads=payloads, hashes=[]),
        lambda: streaming.inside("write", out=theirs, payloads=payloads, size_bytes=size_bytes, hashes=[]),
        options.pairs(5),
    )
    for path in theirs.iterdir():
        if path.read_bytes() != (ours / path.name).read_bytes():
            raise Failed(f"{path.name} differs")
    for folder in (ours, theirs):
        shutil.rmtree(folder)
    return Result(
        "200 MB of MDS samples of 4 KB written",
        [
            row("with sha1", "samples/s", columns(pairs, "samples", "samples"), streaming.NAME, TARGET),
            row("with sha1, a CPU second", "samples", columns(pairs, "per_cpu_s", "per_cpu_s"), streaming.NAME),
            row("without hashes", "samples/s", columns(plain, "samples", "samples"), streaming.NAME, TARGET),
        ],
        ["Ours are synced to disk, the other's are not. Both write the same bytes."],
    )


def write(out: str, payloads: str, hashes: list[str]) -> dict[str, float]:
    """In a child: samples a second, to the commit."""
    import penstock as ps
    from penstock.formats import get_format

    get_format("mds")  # imported now: the other's imports are not timed either
    shutil.rmtree(out, ignore_errors=True)
    data = Path(payloads).read_bytes()
    size_bytes = shards.TOKEN_BYTES
    samples = [{"tokens": data[at : at + size_bytes]} for at in range(0, len(data), size_bytes)]
    began, cpu_began = time.perf_counter(), time.process_time()
    with ps.create(out, format="mds", columns={"tokens": "bytes"}, hashes=hashes) as writer:
        for sample in samples:
            writer.write(sample)
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    return {"samples": len(samples) / seconds, "per_cpu_s": len(samples) / cpu_s}


if __name__ == "__main__":
    answer(globals())
