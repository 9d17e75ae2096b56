"""How fast are crude samples loaded and restored, compared with Megatron-Energon, and images with plain decoding?"""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

from data import jpegs
from harness import DATA, PYTHON, Options, Result, alternate, answer, child, columns, row

ROWS, BATCH, FAR_STEP = 100_000, 16, 3_000
IMAGES, SIDE = 2_000, 256
TEXT_TARGET, JPEG_TARGET, RESTORE_TARGET = 10.0, 0.8, 100.0

# Workers, their kind, label, and target.
_WAYS = (
    (0, "threads", "one process", TEXT_TARGET),
    (2, "processes", "2 worker processes", TEXT_TARGET),
    (2, "threads", "2 worker threads", None),
)


def run(options: Options) -> Result:
    """Run Penstock and Energon in turn in child processes, each with its own interpreter."""
    from peers.environments import interpreter

    peer = interpreter("energon")
    rows_file, tars = _rows(), _images()
    steps = 2_000 if options.quick else 4_000
    rows: list[Any] = []
    for workers, kind, name, target in _WAYS:
        given = {"path": rows_file, "workers": workers, "steps": steps}
        pairs = alternate(
            lambda g=given, k=kind: child(PYTHON, __file__, "text", ours=True, kind=k, **g),
            lambda g=given: child(peer, __file__, "text", ours=False, **g),
            options.pairs(5),
        )
        rows.append(row(f"crude text, {name}", "samples/s", columns(pairs, "rate", "rate"), "megatron-energon", target))
    given = {"path": rows_file, "step": 300 if options.quick else FAR_STEP}
    pairs = alternate(
        lambda: child(PYTHON, __file__, "restore", ours=True, **given),
        lambda: child(peer, __file__, "restore", ours=False, **given),
        options.pairs(3),
    )
    what = f"restore at step {given['step']:,}, 2 workers, first batch"
    rows.append(row(what, "s", columns(pairs, "seconds", "seconds"), "megatron-energon", RESTORE_TARGET))
    pairs = alternate(
        lambda: child(PYTHON, __file__, "images", path=tars),
        lambda: child(PYTHON, __file__, "plain_images", path=tars),
        options.pairs(5),
    )
    what = f"JPEG {SIDE} × {SIDE} as uint8, all cores"
    rows.append(row(what, "images/s", columns(pairs, "rate", "rate"), "simplejpeg, decoding only", JPEG_TARGET))
    note = (
        f"{ROWS:,} lines of about 130 bytes, batches of {BATCH}, shuffled; one cook function, samples as dataclasses. "
        "Energon's workers are processes; Penstock's are threads unless `worker_kind` is set. Threads share the lock "
        "of the Python interpreter, so use processes for functions written in Python."
    )
    return Result("Load crude data through the API of Megatron-Energon", rows, [note])


# --- data --------------------------------------------------------------------------------------------------------


def _rows() -> Path:
    path = DATA / "energon_rows.jsonl"
    if not path.exists():
        from penstock.prepare.jsonl_index import build_index

        DATA.mkdir(exist_ok=True)
        text = "so many words of a text that is to be read "
        with open(path, "w", encoding="utf-8") as file:
            for number in range(ROWS):
                file.write(json.dumps({"id": number, "text": f"{text * 2}{number}"}) + "\n")
        build_index(path, flavor="energon")
    return path


def _images() -> Path:
    path = DATA / "energon_jpegs"
    if not path.exists():
        import penstock as ps

        with ps.create(str(path), format="webdataset") as writer:
            for number, image in enumerate(jpegs(IMAGES, SIDE)):
                writer.write({"__key__": f"{number:06}", "jpg": image})
    return path


# --- in children -------------------------------------------------------------------------------------------------


def _loader(path: str, workers: int, ours: bool, kind: str = "threads") -> Any:
    from crude_text import Encoder, en

    config = en.WorkerConfig(rank=0, world_size=1, num_workers=workers)
    shuffled = {"shuffle_buffer_size": 100, "max_samples_per_sequence": 100}
    dataset = en.get_train_dataset(path, worker_config=config, batch_size=BATCH, task_encoder=Encoder(), **shuffled)
    return en.get_savable_loader(dataset, **({"worker_kind": kind} if ours else {}))


def text(path: str, workers: int, steps: int, ours: bool, kind: str = "threads") -> dict[str, float]:
    """Return samples per second after the first batches."""
    batches = iter(_loader(path, workers, ours, kind))
    for _ in islice(batches, 20):
        pass
    started = time.perf_counter()
    for _ in islice(batches, steps):
        pass
    return {"rate": steps * BATCH / (time.perf_counter() - started)}


def restore(path: str, step: int, ours: bool) -> dict[str, float]:
    """Return the seconds from a new loader and a state to the first batch."""
    loader = _loader(path, 2, ours)
    for _ in islice(loader, step):
        pass
    state = loader.save_state_rank()
    again = _loader(path, 2, ours)
    started = time.perf_counter()
    again.restore_state_rank(state)
    next(iter(again))
    seconds = time.perf_counter() - started
    return {"seconds": seconds}


def images(path: str) -> dict[str, float]:
    """Return images per second from the loader, with one worker per core."""
    from penstock.compat import energon as en

    class Encoder(en.DefaultTaskEncoder[Any, Any, Any, Any]):
        decoder = en.SampleDecoder(image_decode="rgb8")
        cookers = (en.Cooker(en.stateless(lambda sample: {"image": sample["jpg"]})),)

    cores = len(os.sched_getaffinity(0))
    config = en.WorkerConfig(rank=0, world_size=1, num_workers=cores)
    dataset = en.get_train_dataset(path, worker_config=config, batch_size=BATCH, task_encoder=Encoder())
    batches = iter(en.get_loader(dataset))
    next(batches)
    steps = IMAGES // BATCH
    started = time.perf_counter()
    for _ in islice(batches, steps):
        pass
    return {"rate": steps * BATCH / (time.perf_counter() - started)}


def plain_images(path: str) -> dict[str, float]:
    """Decode the same images from memory in threads, and nothing else."""
    import simplejpeg

    import penstock as ps

    data = [sample["jpg"] for sample in ps.open(path, raw=True)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        started = time.perf_counter()
        for _ in pool.map(lambda one: simplejpeg.decode_jpeg(one, "RGB"), data, chunksize=BATCH):
            pass
        return {"rate": len(data) / (time.perf_counter() - started)}


if __name__ == "__main__":
    answer(globals())
