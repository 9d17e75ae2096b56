"""Run inside litdata's environment: writes datasets of chance, and says what litdata itself reads of them.

Argument: JSON `{"folder", "seed", "count"}`. The last line printed is JSON: a list of
`{"path", "tokens": [...] | null, "samples": [...] | null}`. With `--golden FOLDER` it writes the committed files.
"""

import json
import os
import random
import shutil
import sys
import warnings

import numpy as np
import torch
from litdata import StreamingDataset, TokensLoader
from litdata.streaming.cache import Cache

warnings.filterwarnings("ignore")

NUMPY = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
TORCH = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16]
LEVELS = [{}, {}, {"compression": "zstd", "compression_level": "chunk"}]
SAMPLE_LEVELS = [*LEVELS, {"compression": "zstd"}, {"compression": "zstd:7", "compression_level": "sample"}]
SAMPLE_LEVELS += [{"compression": "zstd", "compression_batch_size": 3}]


def write(path, items, **options):
    os.makedirs(path)
    cache = Cache(path, **options)
    for index, item in enumerate(items):
        cache[index] = item
    cache.done()
    cache.merge()


def documents(rng, count, limit):
    return [rng.integers(0, limit, int(rng.integers(1, 40))) for _ in range(count)]


def tokens_case(path, rng, chance):
    docs = documents(rng, chance.randrange(1, 30), 100)
    if chance.random() < 0.5:
        dtype = chance.choice(TORCH)
        items = [torch.tensor(doc).to(dtype) for doc in docs]
    else:
        dtype = chance.choice(NUMPY)
        items = [doc.astype(dtype) for doc in docs]
    size = {"chunk_bytes": chance.randrange(64, 2000)} if chance.random() < 0.5 else {"chunk_size": 200}
    write(path, items, item_loader=TokensLoader(), **size, **chance.choice(LEVELS))
    return {"path": path, "tokens": [doc.tolist() for doc in docs], "samples": None}


def value(rng, chance, kind, number):
    array = rng.integers(0, 100, int(rng.integers(1, 6)))
    return {
        "int": int(rng.integers(-(1 << 40), 1 << 40)),
        "float": float(rng.normal()),
        "bool": bool(rng.integers(0, 2)),
        "str": f"text {number} ä",
        "bytes": bytes(array.astype(np.uint8)),
        "array": array.astype(chance),
        "square": np.arange(6, dtype=chance).reshape(2, 3) + number,
        "tensor": torch.tensor(array),
        "cube": torch.arange(4).reshape(2, 1, 2) + number,
        "deep": {"a": [array, {"b": float(number)}], "c": (number, "x")},
    }[kind]


KINDS = ["int", "float", "bool", "str", "bytes", "array", "square", "tensor", "cube"]


def samples_case(path, rng, chance):
    kinds = chance.sample(KINDS, chance.randrange(1, len(KINDS)))
    dtype = chance.choice([*NUMPY, "float16", "float32", "float64"])
    deep = chance.random() < 0.2
    count = chance.randrange(1, 25)
    items = []
    for number in range(count):
        item = {f"{kind}s": value(rng, dtype, kind, number) for kind in kinds}
        if deep:
            item = [item, *value(rng, dtype, "deep", number)["a"][:1]]
        items.append(item)
    write(path, items, chunk_bytes=chance.randrange(200, 4000), **chance.choice(SAMPLE_LEVELS))
    shutil.copytree(path, f"{path}-read")  # it unpacks files where they are, and removes what was packed
    read = StreamingDataset(f"{path}-read", shuffle=False)
    return {"path": path, "tokens": None, "samples": [plain(read[index]) for index in range(len(read))]}


def plain(one):
    """As JSON: arrays with their dtype and shape."""
    if isinstance(one, torch.Tensor):
        one = one.numpy()
    if isinstance(one, np.ndarray):
        return {"dtype": str(one.dtype), "shape": list(one.shape), "values": one.reshape(-1).tolist()}
    if isinstance(one, (bytes, bytearray, memoryview)):
        return {"hex": bytes(one).hex()}
    if isinstance(one, dict):
        return {str(name): plain(inside) for name, inside in one.items()}
    if isinstance(one, (list, tuple)):
        return [plain(inside) for inside in one]
    return one.item() if isinstance(one, np.generic) else one


def main(given):
    found = []
    for number in range(given["count"]):
        seed = given["seed"] * 1000 + number
        rng, chance = np.random.default_rng(seed), random.Random(seed)
        case = tokens_case if number % 2 else samples_case
        found.append(case(os.path.join(given["folder"], f"case-{number}"), rng, chance))
    return found


def golden(folder):
    """The committed files; documents and samples are those that their test writes down."""
    docs = [[1, 2, 3], [300], [7] * 20, [5, 6]]
    for name, make, options in (
        ("tokens-uint16", lambda doc: np.array(doc, np.uint16), {}),
        ("tokens-int32", lambda doc: torch.tensor(doc, dtype=torch.int32), {}),
        ("tokens-int64-zstd", torch.tensor, LEVELS[2]),
    ):
        write(os.path.join(folder, name), list(map(make, docs)), item_loader=TokensLoader(), chunk_bytes=60, **options)
    rows = [
        {"n": n, "x": n / 2, "text": f"t{n}", "raw": b"r" * n, "ok": n > 1, "ids": np.arange(n + 1)} for n in range(5)
    ]
    tables = [{"n": n, "text": f"t{n}", "list": [n, n + 1]} for n in range(5)]
    for name, items, options in (
        ("samples", rows, {}),
        ("samples-batch", rows, {"compression": "zstd", "compression_batch_size": 2}),
        ("samples-sample", rows, {"compression": "zstd", "compression_level": "sample"}),
        ("samples-chunk", rows, LEVELS[2]),
        ("samples-arrow", tables, {}),
        ("samples-pickle", [{"n": n, "what": {1, n}} for n in range(2)], {}),
    ):
        write(os.path.join(folder, name), items, chunk_bytes=260, **options)


if sys.argv[1] == "--golden":
    golden(sys.argv[2])
else:
    print(json.dumps(main(json.loads(sys.argv[1]))))
