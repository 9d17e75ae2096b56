"""How fast are batches of captioned images loaded, compared with Megatron-Energon and with only decoding?"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

from data import jpegs
from harness import DATA, PYTHON, Options, Result, Row, alternate, answer, child, columns, row

IMAGES, SIDE, BATCH = 2_000, 256, 32
WARM_BATCHES = 4
DECODING = "simplejpeg, decoding only"
ENERGON_TARGET, DECODING_TARGET = 5.0, 0.6

# Workers of both loaders, kind of Penstock's workers, and label. Energon's workers are always processes.
_WAYS = ((0, "threads", "no workers"), (2, "threads", "two threads"), (2, "processes", "two processes"))


def run(options: Options) -> Result:
    """Run pairs of child processes: Penstock and Energon in turn, then Penstock and decoding only."""
    from peers.environments import interpreter

    peer = interpreter("energon")
    path = dataset()
    rows: list[Row] = []
    for workers, kind, name in _WAYS:
        given = {"path": path, "workers": workers}
        ours = lambda g=given, k=kind: child(PYTHON, __file__, "captions", ours=True, kind=k, **g)  # noqa: E731
        pairs = alternate(ours, lambda g=given: child(peer, __file__, "captions", ours=False, **g), options.pairs(5))
        rows.append(_row(f"CaptioningSample, default encoder, {name}", pairs, "megatron-energon", ENERGON_TARGET))
        pairs = alternate(ours, lambda w=workers: _decoding(path, w), options.pairs(3))
        rows.append(_row(f"CaptioningSample, default encoder, {name}", pairs, DECODING, DECODING_TARGET))
    for workers, kind, name in _WAYS:
        pairs = alternate(
            lambda w=workers, k=kind: child(PYTHON, __file__, "native", path=path, workers=w, kind=k),
            lambda w=workers: _decoding(path, w),
            options.pairs(3),
        )
        rows.append(_row(f"torch_loader, uint8, {name}", pairs, DECODING, DECODING_TARGET))
    notes = [
        f"{IMAGES:,} JPEGs of {SIDE} × {SIDE} with captions in one tar, shuffled, batches of {BATCH}, after "
        f"{WARM_BATCHES} warm-up batches. Energon's default encoder returns float32 pixels, so a batch has "
        f"{BATCH * SIDE * SIDE * 12 / 1e6:.0f} MB; with `uint8`, it has a quarter of that. Energon's workers are "
        "processes.",
        "Decoding only: the same images are decoded from memory to uint8, with one thread per worker of the row (one "
        "thread if it has no workers).",
    ]
    return Result("Load batches of images and captions from a tar", rows, notes)


def _row(what: str, pairs: Any, other: str, target: float) -> Row:
    return row(what, "images/s", columns(pairs, "rate", "rate"), other, target)


def _decoding(path: Path, workers: int) -> Any:
    return child(PYTHON, __file__, "decoding", path=path, threads=max(workers, 1))


def dataset() -> Path:
    """Return the dataset; create it if missing."""
    path = DATA / "captioned_jpegs"
    if not path.exists():
        import penstock as ps

        with ps.create(str(path), format="webdataset") as writer:
            for number, image in enumerate(jpegs(IMAGES, SIDE)):
                caption = f"image {number}, with some words about it"
                writer.write({"__key__": f"{number:06}", "jpg": image, "txt": caption})
        (path / ".nv-meta" / "dataset.yaml").write_text(
            "__module__: megatron.energon\n__class__: CaptioningWebdataset\nfield_map:\n  image: jpg\n  caption: txt\n"
        )
    return path


# --- in children -------------------------------------------------------------------------------------------------


def captions(path: str, workers: int, ours: bool, kind: str = "threads") -> dict[str, float]:
    """Return images per second through Energon's API, with its default encoder for captioned images."""
    if ours:
        from penstock.compat import energon as en
    else:
        import megatron.energon as en  # type: ignore[import-not-found,no-redef]

    config = en.WorkerConfig(rank=0, world_size=1, num_workers=workers)
    shuffled = {"shuffle_buffer_size": 100, "max_samples_per_sequence": 100}
    encoder = en.DefaultTaskEncoder()
    dataset = en.get_train_dataset(path, worker_config=config, batch_size=BATCH, task_encoder=encoder, **shuffled)
    return _rate(en.get_savable_loader(dataset, **({"worker_kind": kind} if ours else {})))


def native(path: str, workers: int, kind: str) -> dict[str, float]:
    """Return images per second of Penstock's own loader, as uint8 tensors."""
    import penstock as ps
    from penstock.load.torch import torch_loader

    stream = ps.Shuffle(ps.open(path, split="train", decode="uint8"), seed=7)
    return _rate(torch_loader(stream, BATCH, rank=0, world=1, workers=workers, worker_kind=kind))


def decoding(path: str, threads: int) -> dict[str, float]:
    """Decode the same images from memory in threads, and nothing else."""
    import simplejpeg

    import penstock as ps

    data = [sample["jpg"] for sample in ps.open(path, raw=True)]
    with ThreadPoolExecutor(threads) as pool:
        started = time.perf_counter()
        for _ in pool.map(lambda one: simplejpeg.decode_jpeg(one, "RGB"), data, chunksize=BATCH):
            pass
        return {"rate": len(data) / (time.perf_counter() - started)}


def _rate(loader: Any) -> dict[str, float]:
    batches = iter(loader)
    for _ in islice(batches, WARM_BATCHES):
        pass
    steps = IMAGES // BATCH
    started = time.perf_counter()
    for _ in islice(batches, steps):
        pass
    return {"rate": steps * BATCH / (time.perf_counter() - started)}


if __name__ == "__main__":
    answer(globals())
