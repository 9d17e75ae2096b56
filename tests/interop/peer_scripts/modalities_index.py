"""Modalities' classes around the raw index.

Argument: JSON {"drop": [[jsonl, idx], …], "read": [[jsonl, idx], …]}. `drop` makes indexes that leave faulty
lines out; `read` reads every line. Prints, for each of `read`, its lines in base64.
"""

import base64
import json
import sys
import warnings
from pathlib import Path

from modalities.dataloader.create_index import IndexGenerator
from modalities.dataloader.large_file_lines_reader import LargeFileLinesReader


def drop(jsonl: str, idx: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        IndexGenerator(Path(jsonl), drop_faulty_entries=True).create_index(Path(idx))


def read(jsonl: str, idx: str) -> list[str]:
    reader = LargeFileLinesReader(Path(jsonl), index_path=Path(idx), encoding=None)
    return [base64.b64encode(reader[i]).decode() for i in range(len(reader))]


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    for pair in arguments["drop"]:
        drop(*pair)
    print(json.dumps([read(*pair) for pair in arguments["read"]]))
