"""Run inside levanter's environment: writes caches of chance, and says what levanter itself reads of them.

Argument: JSON `{"folder", "seed", "count"}`. The last line printed is JSON: a list of `{"path", "rows": [...]}`. With
`--golden FOLDER` it writes the committed files.

The store of levanter is run as it is. Its top package is not: that imports trainers, which need much and give nothing
here; job runners are small stand-ins (`stubs/`).
"""

import importlib.util
import json
import logging
import os
import random
import sys
import types

import numpy as np

HOME = importlib.util.find_spec("levanter").submodule_search_locations[0]
for name in ("levanter", "levanter.data"):
    package = types.ModuleType(name)
    package.__path__ = [os.path.join(HOME, *name.split(".")[1:])]
    sys.modules[name] = package
sources = types.ModuleType("levanter.data.sharded_datasource")
sources.ShardedDataSource = type("ShardedDataSource", (), {"__class_getitem__": classmethod(lambda cls, of: cls)})
sys.modules[sources.__name__] = sources

from levanter.store import SerialCacheWriter, TreeCache  # noqa: E402
from levanter.store.cache import consolidate_shard_cache_ledgers, consolidate_shard_caches  # noqa: E402

logging.disable(logging.CRITICAL)

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES = [*INTEGERS, "float16", "float32", "float64", "bool"]


def write(path, exemplar, rows, step=1000):
    with SerialCacheWriter(path, exemplar) as writer:
        for start in range(0, len(rows), step):
            writer.write_batch(rows[start : start + step])


def write_by(how, path, exemplar, rows, step, parts):
    """In one go, or in shards that levanter makes one cache of."""
    if how == "serial":
        write(path, exemplar, rows, step)
        return
    cuts = np.linspace(0, len(rows), parts + 1).astype(int)
    shards = [os.path.join(path, f"{number:05d}_shard") for number in range(parts)]
    for shard, start, stop in zip(shards, cuts[:-1], cuts[1:], strict=True):
        write(shard, exemplar, rows[start:stop], step)
    together = consolidate_shard_caches if how == "consolidated" else consolidate_shard_cache_ledgers
    together(shards, path, exemplar)


def array(rng, name, dtype, shape, zeros):
    """A mask of zeros and ones, ids that are never 0, or other values; levanter writes no file for a chunk of zeros."""
    if name == "input_ids":
        return rng.integers(1, 120, shape).astype(dtype)
    if zeros:
        return np.zeros(shape, dtype)
    return rng.integers(0, 2 if dtype == "bool" or name == "assistant_masks" else 120, shape).astype(dtype)


def case(path, rng, chance, number):
    """Documents of ids, with masks or without, or rows of any arrays."""
    count = chance.randrange(1, 30)
    zeros = chance.random() < 0.05
    if number % 2:
        dtypes, ranks = {"input_ids": chance.choice(INTEGERS)}, {"input_ids": 1}
        if chance.random() < 0.5:
            dtypes["assistant_masks"], ranks["assistant_masks"] = "int32", 1
    else:
        names = chance.sample(["a", "b", "c/d", "c/e", "f"], chance.randrange(1, 5))
        dtypes = {name: chance.choice(DTYPES) for name in names}
        ranks = {name: chance.randrange(1, 4) for name in names}
    long = number == 1  # more values than one inner chunk of a shard holds
    rows = []
    for _ in range(count):
        length = 40000 if long else chance.randrange(0 if number % 2 else 1, 40)
        row = {}
        for name, dtype in dtypes.items():
            shape = [length] if ranks[name] == 1 else [chance.randrange(1, 5) for _ in range(ranks[name])]
            row[name] = array(rng, name, dtype, shape, zeros)
        rows.append(nested(row))
    exemplar = nested({name: np.zeros((0,) * ranks[name], dtypes[name]) for name in dtypes})
    how = chance.choice(["serial", "serial", "consolidated", "sharded"])
    write_by(how, path, exemplar, rows, chance.randrange(1, 30), min(count, chance.randrange(1, 4)))
    read = TreeCache.load(path, exemplar)
    return {"path": path, "rows": [plain(read[index]) for index in range(len(read))]}


def nested(row):
    made = {}
    for name, value in row.items():
        outer, _, inner = name.partition("/")
        if inner:
            made.setdefault(outer, {})[inner] = value
        else:
            made[outer] = value
    return made


def plain(row, before=""):
    """As JSON: flat names, and arrays with their dtype and shape."""
    made = {}
    for name, value in row.items():
        if isinstance(value, dict):
            made |= plain(value, f"{before}{name}/")
        else:
            made[before + name] = {
                "dtype": str(value.dtype),
                "shape": list(value.shape),
                "values": value.reshape(-1).tolist(),
            }
    return made


def main(given):
    found = []
    for number in range(given["count"]):
        seed = given["seed"] * 1000 + number
        rng, chance = np.random.default_rng(seed), random.Random(seed)
        found.append(case(os.path.join(given["folder"], f"case-{number}"), rng, chance, number))
    return found


def golden(folder):
    """The committed files; rows are those that their test writes down."""
    docs = [[1, 2, 3], [300], [7] * 20, [], [5, 6]]
    ids = np.zeros((0,), np.int32)
    chats = [{"input_ids": np.array(doc, np.int32), "assistant_masks": np.array(doc, np.int32) % 2} for doc in docs]
    write(os.path.join(folder, "tokens"), {"input_ids": ids, "assistant_masks": ids}, chats, 2)
    for how in ("consolidated", "sharded"):
        rows = [{"input_ids": np.array(doc, np.uint16)} for doc in docs]
        write_by(how, os.path.join(folder, how), {"input_ids": ids.astype(np.uint16)}, rows, 2, 2)
    square, many = np.zeros((0, 0), np.float32), np.zeros((0, 0, 0), np.int64)
    rows = [
        {
            "x": {"y": np.full((n + 1, 2), n / 2, np.float32)},
            "many": np.arange(4 * n + 4).reshape(2, n + 1, 2),
            "ok": np.array([n > 1]),
        }
        for n in range(3)
    ]
    write(os.path.join(folder, "trees"), {"x": {"y": square}, "many": many, "ok": np.zeros((0,), bool)}, rows)
    write(os.path.join(folder, "bare"), ids, [np.array(doc, np.int32) for doc in docs])
    write(os.path.join(folder, "empty"), {"input_ids": ids}, [])


if sys.argv[1] == "--golden":
    golden(sys.argv[2])
else:
    print(json.dumps(main(json.loads(sys.argv[1]))))
