"""Modalities' classes over packed files.

Argument: JSON {"documents": [[pbin, npz], …], "windows": [[pbin, npz], …], "blocks": [[block_size, reuse], …],
"write": [[npz, pbin, token_bytes], …]}. `write` comes first: documents given as `tokens` and `lengths`.
`documents` and `windows` read into npz files: `tokens` and `lengths`; `<block_size>_<reuse>`.
"""

import json
import sys
from pathlib import Path

import numpy as np
from modalities.dataloader.dataset import PackedMemMapDatasetBase, PackedMemMapDatasetContinuous
from modalities.dataloader.preprocessing.tokenization.tokenized_file_writer import TokenizedFileWriter


def write(npz: str, pbin: str, token_bytes: int) -> None:
    with np.load(npz) as data:
        documents = np.split(data["tokens"], np.cumsum(data["lengths"])[:-1])
    TokenizedFileWriter.write_tokenized_dataset(documents, Path(pbin), token_size_in_bytes=token_bytes)


def read_documents(pbin: str, npz: str) -> None:
    dataset = PackedMemMapDatasetBase(Path(pbin), sample_key="tokens")
    documents = [np.asarray(dataset[i]["tokens"], dtype=np.int64) for i in range(len(dataset))]
    lengths = np.array([len(document) for document in documents], dtype=np.int64)
    np.savez(npz, tokens=np.concatenate([np.empty(0, np.int64), *documents]), lengths=lengths)


def read_windows(pbin: str, npz: str, blocks: list[tuple[int, bool]]) -> None:
    windows = {}
    for block_size, reuse in blocks:
        dataset = PackedMemMapDatasetContinuous(
            Path(pbin), sample_key="tokens", block_size=block_size, reuse_last_target=reuse
        )
        rows = [np.asarray(dataset[i]["tokens"], dtype=np.int64) for i in range(len(dataset))]
        windows[f"{block_size}_{reuse}"] = np.stack(rows)
    np.savez(npz, **windows)


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    for item in arguments.get("write", []):
        write(*item)
    for pbin, npz in arguments.get("documents", []):
        read_documents(pbin, npz)
    for pbin, npz in arguments.get("windows", []):
        read_windows(pbin, npz, arguments["blocks"])
    print(json.dumps("done"))
