"""How many MDS samples of 4 KB are written per second, with a hash per shard?"""

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
    """Write the same 200 MB on both sides. Penstock syncs its files to disk."""
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
        "Write 200 MB of MDS samples of 4 KB",
        [
            row("with sha1", "samples/s", columns(pairs, "samples", "samples"), streaming.NAME, TARGET),
            row("with sha1, per CPU second", "samples", columns(pairs, "per_cpu_s", "per_cpu_s"), streaming.NAME),
            row("without hashes", "samples/s", columns(plain, "samples", "samples"), streaming.NAME, TARGET),
        ],
        ["Penstock syncs its files to disk, mosaicml-streaming doesn't. Both write the same bytes."],
    )


def write(out: str, payloads: str, hashes: list[str]) -> dict[str, float]:
    """Return samples per second, including the commit; runs in a child process."""
    import penstock as ps
    from penstock.formats import get_format

    get_format("mds")  # import before the timing, as on the other side
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
