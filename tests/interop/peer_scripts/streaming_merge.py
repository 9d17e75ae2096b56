"""Runs inside mosaicml-streaming's environment: merges folders with its own function, and reads what was merged.

Gets {"theirs": [folders], "into": folder of them, "read": [folders]}; the last line it prints is the values of the
column `id` and the digests of the column `data` of each folder in "read", after its merge.
"""

import hashlib
import json
import sys
import warnings
from typing import Any

from streaming import LocalDataset, MDSWriter
from streaming.base.util import merge_index


def main(given: dict[str, Any]) -> list[list[Any]]:
    columns = {"id": "int", "data": "bytes"}
    number = 0
    for folder in given["theirs"]:
        with MDSWriter(out=folder, columns=columns, size_limit=400, hashes=["sha1"]) as writer:
            for _ in range(number % 7 + 5):
                writer.write({"id": number, "data": b"\0" * number})
                number += 1
    merge_index(given["into"], keep_local=True)
    return [
        [[sample["id"], hashlib.sha1(sample["data"]).hexdigest()] for sample in LocalDataset(folder)]
        for folder in given["read"]
    ]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(main(json.loads(sys.argv[1]))))
