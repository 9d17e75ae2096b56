"""Writes MDS from a Spark dataframe, by the original's converter or ours, and reads it with the original's reader.

The argument is JSON: `names`, the package whose converter is meant; `folder`, an empty one; `source`, of ours.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
ROWS = 500
COLUMNS = {"id": "int64", "text": "str", "x": "float64"}


def plus_one(frame: Any) -> Any:
    for number in frame["id"]:
        yield {"id": int(number) + 1}


def main(names: str, folder: str, source: str) -> dict[str, Any]:
    sys.path.append(source)
    os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), source])
    sql: Any = importlib.import_module("pyspark.sql")
    settings = {"spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false"}
    builder = sql.SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    frame = spark.createDataFrame([(n, f"t{n}", n / 2) for n in range(ROWS)], list(COLUMNS)).repartition(3).cache()
    convert = importlib.import_module(f"{names}.base.converters").dataframe_to_mds
    convert(frame, merge_index=True, mds_kwargs={"out": f"{folder}/told", "columns": COLUMNS})
    convert(frame, merge_index=True, mds_kwargs={"out": f"{folder}/found", "compression": None})
    made = {"out": f"{folder}/made", "columns": {"id": "int64"}, "hashes": ["xxh64"]}
    convert(frame, merge_index=True, mds_kwargs=made, udf_iterable=plus_one)
    spark.stop()
    local = importlib.import_module("streaming").StreamingDataset
    result: dict[str, Any] = {}
    for name in ("told", "found", "made"):
        index = json.loads(Path(folder, name, "index.json").read_text())
        shards = index["shards"]
        dataset = local(local=f"{folder}/{name}", shuffle=False, batch_size=1)
        result[name] = {
            "columns": [shards[0]["column_names"], shards[0]["column_encodings"]],
            "how": [shards[0]["compression"], shards[0]["hashes"], len(shards)],
            "samples": sorted(
                [{key: sample[key] for key in sorted(sample)} for sample in dataset], key=lambda one: one["id"]
            ),
        }
    return result


if __name__ == "__main__":
    found = main(**json.loads(sys.argv[1]))
    print()
    print(json.dumps(found, default=lambda one: one.item()))
