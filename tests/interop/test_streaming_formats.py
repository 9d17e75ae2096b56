"""Datasets of the real mosaicml-streaming and of ours, for columns and options drawn by chance, read by each other."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import random
from pathlib import Path
from typing import Any

import peers
import pytest

import penstock as ps
from penstock.testing.equality import same_samples

SCRIPT = peers.SCRIPTS / "streaming_formats.py"
CASES = 60
MDS = (
    *("bytes", "str", "int", "uint8", "uint16", "int64", "float32", "float16", "str_int", "str_float", "str_decimal"),
    *("json", "ndarray", "ndarray:uint16", "ndarray:float32:2,3"),
)
TEXT = ("str", "int", "float")
ALGORITHMS = ("blake2b", "md5", "sha1", "sha3_256", "xxh128", "xxh32", "xxh3_64")


def a_case(rng: random.Random, number: int, folder: Path) -> dict[str, Any]:
    name = rng.choice(["mds", "mds", "mds", "csv", "tsv", "xsv", "json-shards"])
    encodings = MDS if name == "mds" else TEXT
    columns = {column: rng.choice(encodings) for column in rng.sample("abcXYZéß_1", rng.randint(1, 5))}
    options: dict[str, Any] = {
        "size_limit": rng.choice([None, 200, "1kb", 5000, 1 << 26]),
        "compression": rng.choice([None, None, "br:4", "bz2", "gz:3", "snappy", "zstd", "zstd:7"]),
        "hashes": sorted(rng.sample(ALGORITHMS, rng.randint(0, 3))),
    }
    if name != "mds":
        options["newline"] = rng.choice(["\n", "\r\n" if name == "json-shards" else "\n--\n"])
    if name == "xsv":
        options["separator"] = rng.choice(["|", " || ", ";;"])
    places = {"theirs": str(folder / f"{number}.theirs"), "ours": str(folder / f"{number}.ours")}
    return {"seed": rng.randrange(1 << 30), "format": name, "columns": columns, "options": options, **places}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    rng = random.Random(os.environ.get("PENSTOCK_INTEROP_SEED", "0"))
    folder = tmp_path_factory.mktemp("streaming")
    found = [a_case(rng, number, folder) for number in range(CASES)]
    for case in found:
        with ps.create(case["ours"], format=case["format"], columns=case["columns"], **case["options"]) as writer:
            for sample in samples_of(case):
                writer.write(sample)
    (folder / "cases.json").write_text(json.dumps(found))
    assert peers.run_script("streaming", SCRIPT, {"cases": str(folder / "cases.json")}) == []
    return found


def samples_of(case: dict[str, Any]) -> list[dict[str, Any]]:
    spec: Any = importlib.util.spec_from_file_location("streaming_formats", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.samples_of(case)


def test_theirs_are_read(cases: list[dict[str, Any]]) -> None:
    for case in cases:
        source = ps.open(case["theirs"])
        assert same_samples(list(source), samples_of(case)), case
        assert [one for one in ps.verify(case["theirs"], depth="full") if one.severity == "error"] == [], case


def test_the_same_files(cases: list[dict[str, Any]]) -> None:
    """Byte for byte, but for what a compression library may do in its own way: there, what it holds."""
    for case in cases:
        ours, theirs = Path(case["ours"]), Path(case["theirs"])
        names = {path.name for path in theirs.iterdir()}
        assert {path.name for path in ours.iterdir()} == names | {".penstock"}, case
        zipped = (case["options"]["compression"] or "").partition(":")[0]
        for name in names:
            left, right = (ours / name).read_bytes(), (theirs / name).read_bytes()
            if zipped == "gz" and name.endswith(".gz"):
                left, right = gzip.decompress(left), gzip.decompress(right)
            elif zipped and name == "index.json":
                left, right = without_zips(left), without_zips(right)
            elif zipped and zipped != "gz":
                continue
            assert left == right, f"{case}: {name}"


def without_zips(index: bytes) -> Any:
    """The index, without what it says of compressed files."""
    found = json.loads(index)
    for entry in found["shards"]:
        for key in ("zip_data", "zip_meta"):
            if key in entry:
                entry[key] = {**entry[key], "hashes": sorted(entry[key]["hashes"]), "bytes": 0}
    return found
