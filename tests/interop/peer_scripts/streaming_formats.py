"""Runs inside mosaicml-streaming's environment: writes datasets by chance with its writers, and reads ours.

Gets a list of cases `{"seed", "format", "columns", "options", "theirs", "ours"}`; the last line it prints is a list of
what it read wrongly from ours, empty where all is well. The samples of a case are made on both sides from its seed.
"""

import json
import shutil
import sys
from decimal import Decimal
from typing import Any

import numpy as np

WORDS = ["", "a", "é", "日本", '"quoted"', "it's", "a b", "\r", "\x00", "x" * 50, "😀", "=1+1"]


def samples_of(case: dict[str, Any]) -> list[dict[str, Any]]:
    rng = np.random.default_rng(case["seed"])
    count = int(rng.integers(1, 60))
    return [{name: value_of(rng, encoding) for name, encoding in case["columns"].items()} for _ in range(count)]


def value_of(rng: np.random.Generator, encoding: str) -> Any:
    kind, _, rest = encoding.partition(":")
    if kind == "ndarray":
        dtype, _, dims = rest.partition(":")
        shape = [int(size) for size in dims.split(",")] if dims else rng.integers(1, 5, rng.integers(1, 3)).tolist()
        return rng.integers(0, 100, shape).astype(dtype or rng.choice(["uint8", "int64", "float32", "uint16"]))
    makers: dict[str, Any] = {
        "bytes": lambda: rng.bytes(int(rng.integers(0, 300))),
        "str": lambda: str(rng.choice(WORDS)),
        "int": lambda: int(rng.integers(-(1 << 62), 1 << 62)),
        "str_int": lambda: int(rng.integers(0, 1 << 62)) ** 3,
        "float": lambda: float(rng.choice([0.1, -0.0, 1e22, 1e-7, float("inf"), float(rng.random())])),
        "str_float": lambda: float(rng.random()),
        "str_decimal": lambda: Decimal(int(rng.integers(0, 10**9))) / 1000,
        "json": lambda: {"k": [int(rng.integers(9)), None, "é"], "n": float(rng.random())},
    }
    return makers[kind]() if kind in makers else getattr(np, kind)(rng.integers(0, 100))


def write(case: dict[str, Any]) -> None:
    from streaming import CSVWriter, JSONWriter, MDSWriter, TSVWriter, XSVWriter

    writers = {"mds": MDSWriter, "csv": CSVWriter, "tsv": TSVWriter, "xsv": XSVWriter, "json-shards": JSONWriter}
    with writers[case["format"]](out=case["theirs"], columns=case["columns"], **case["options"]) as writer:
        for sample in samples_of(case):
            writer.write(sample)


def read(case: dict[str, Any]) -> str | None:
    from streaming import LocalDataset, StreamingDataset

    folder = case["ours"] + ".copy"  # it writes what it decompresses into the folder
    shutil.copytree(case["ours"], folder)
    zipped = case["options"]["compression"] is not None
    dataset: Any = StreamingDataset(local=folder, batch_size=1) if zipped else LocalDataset(folder)
    expected = samples_of(case)
    if len(dataset) != len(expected):
        return f"{case}: {len(dataset)} samples, not {len(expected)}"
    for index, sample in enumerate(expected):
        found = dataset[index]
        for name, value in sample.items():
            same = np.array_equal(found[name], value) if isinstance(value, np.ndarray) else found[name] == value
            if not same or type(found[name]) is not type(value):
                return f"{case}: sample {index}: {name}: {found[name]!r}, not {value!r}"
    return None


if __name__ == "__main__":
    with open(json.loads(sys.argv[1])["cases"], encoding="utf-8") as file:
        cases = json.load(file)
    wrong = []
    for one in cases:
        write(one)
        wrong.append(read(one))
    print(json.dumps([text for text in wrong if text is not None]))
