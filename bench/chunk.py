"""How fast is a shuffled chunk extracted from several files?"""

from __future__ import annotations

from pathlib import Path

import data
from harness import Options, Result
from peers import modalities
from whole import compare_with_modalities, penstock, same_bytes

TARGET = 5
FILES = 4


def run(options: Options) -> Result:
    """Extract half of the documents of four files, shuffled together. Both outputs must be identical."""
    packed = data.packed_tokens()
    listed = data.made("four-times.txt", lambda path: path.write_text(f"{packed.name}\n" * FILES))

    def arguments(path: Path) -> list[object]:
        places = ["--input_file_list_path", listed, "--input_data_root_path", packed.parent]
        numbers = ["--chunk_id", 1, "--num_chunks", 2, "--global_seed", 7]
        return ["data", "create_shuffled_dataset_chunk", *places, "--output_chunk_file_path", path, *numbers]

    def ours(path: Path) -> list[object]:
        return penstock("modalities", *arguments(path))

    def theirs(path: Path) -> list[object]:
        return modalities.command(*arguments(path))

    rows = compare_with_modalities("half of 4 files of 128 MB", ours, theirs, "chunk.pbin", options, TARGET)
    return Result("Extract a shuffled chunk of packed files", rows, [same_bytes(ours, theirs, "chunk.pbin")])
