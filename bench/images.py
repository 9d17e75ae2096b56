"""How many images a second come out of Energon's own loader, and ours under its names, as float tensors in batches?"""

from __future__ import annotations

import io
import os
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

from harness import DATA, PYTHON, Options, Result, alternate, answer, child, columns, row

IMAGES, SIDE, BATCH, WARM_BATCHES = 2_000, 256, 32, 3
TARGET, DECODING_TARGET = 5.0, 0.6

# Workers, their kind, what the row is called.
_WAYS = ((0, "threads", "no workers"), (2, "threads", "two threads"), (2, "processes", "two processes"))


def run(options: Options) -> Result:
    """Captioned images through the default task encoder, in turn with Energon, and with decoding alone."""
    from peers.environments import interpreter

    peer, tars = interpreter("energon"), _tars()
    rows: list[Any] = []
    for workers, kind, name in _WAYS:
        given = {"path": tars, "workers": workers}
        pairs = alternate(
            lambda g=given, k=kind: child(PYTHON, __file__, "load", ours=True, kind=k, **g),
            lambda g=given: child(peer, __file__, "load", ours=False, **g),
            options.pairs(3),
        )
        rows.append(row(f"batches, {name}", "images/s", columns(pairs, "rate", "rate"), "megatron-energon", TARGET))
        pairs = alternate(
            lambda g=given, k=kind: child(PYTHON, __file__, "load", ours=True, kind=k, **g),
            lambda w=workers: child(PYTHON, __file__, "decode", path=tars, threads=max(1, w)),
            options.pairs(3),
        )
        what = f"simplejpeg alone, {max(1, workers)} threads"
        rows.append(row(f"batches, {name}", "images/s", columns(pairs, "rate", "rate"), what, DECODING_TARGET))
    return Result(
        f"Images with captions, to batches of {BATCH} float tensors",
        rows,
        [
            f"{IMAGES:,} JPEGs of {SIDE} × {SIDE}: CaptioningSample, the default task encoder, shuffled. Energon's "
            "workers are processes in each row with workers. Decoding alone is from memory, to uint8; it keeps nothing."
        ],
    )


def _tars() -> Path:
    path = DATA / "captioned_jpegs"
    if not path.exists():
        import numpy as np
        import simplejpeg

        from penstock.prepare.energon.run import DatasetOptions, prepare_webdataset

        unfinished = DATA / f"captioned_jpegs.{os.getpid()}"
        unfinished.mkdir(parents=True)
        rng = np.random.default_rng(0)
        ramp = np.linspace(0, 200, SIDE)[:, None, None]
        for shard in range(4):
            with tarfile.open(unfinished / f"shard_{shard}.tar", "w") as tar:
                for number in range(IMAGES // 4):
                    pixels = np.ascontiguousarray((ramp + rng.integers(0, 55, (SIDE, SIDE, 3))).astype(np.uint8))
                    parts = {"jpg": simplejpeg.encode_jpeg(pixels, 90), "txt": f"picture {number} of {shard}".encode()}
                    for name, data in parts.items():
                        member = tarfile.TarInfo(f"{shard}_{number:06}.{name}")
                        member.size = len(data)
                        tar.addfile(member, io.BytesIO(data))
        options = DatasetOptions(sample_type="CaptioningSample", field_map={"image": "jpg", "caption": "txt"})
        prepare_webdataset(unfinished, split_ratio=(1, 0, 0), dataset=options)
        unfinished.rename(path)
    return path


# --- in children -------------------------------------------------------------------------------------------------


def load(path: str, workers: int, ours: bool, kind: str = "threads") -> dict[str, float]:
    """Images a second, after the first batches."""
    if ours:
        from penstock.compat import energon as en
    else:
        import megatron.energon as en  # type: ignore[import-not-found]

    config = en.WorkerConfig(rank=0, world_size=1, num_workers=workers)
    shuffled = {"shuffle_buffer_size": 100, "max_samples_per_sequence": 100}
    encoder = en.DefaultTaskEncoder()
    dataset = en.get_train_dataset(path, worker_config=config, batch_size=BATCH, task_encoder=encoder, **shuffled)
    batches = iter(en.get_savable_loader(dataset, **({"worker_kind": kind} if ours else {})))
    for batch in islice(batches, WARM_BATCHES):
        if tuple(batch.image.shape) != (BATCH, 3, SIDE, SIDE) or not batch.image.is_floating_point():
            raise ValueError(f"not what was to be measured: {batch.image.shape} of {batch.image.dtype}")
    steps = IMAGES // BATCH
    started = time.perf_counter()
    for _ in islice(batches, steps):
        pass
    return {"rate": steps * BATCH / (time.perf_counter() - started)}


def decode(path: str, threads: int) -> dict[str, float]:
    """The same images, decoded from memory by threads and nothing else."""
    import simplejpeg

    import penstock as ps

    data = [sample["jpg"] for sample in ps.open(path, raw=True)]
    with ThreadPoolExecutor(threads) as pool:
        started = time.perf_counter()
        for _ in pool.map(lambda one: simplejpeg.decode_jpeg(one, "RGB"), data, chunksize=BATCH):
            pass
        return {"rate": len(data) / (time.perf_counter() - started)}


if __name__ == "__main__":
    answer(globals())
