"""The original's `modalities.dataloader.large_file_lines_reader`."""

from penstock.compat.modalities.lines import (
    LargeFileLinesReader,
)

__all__ = [
    "LargeFileLinesReader",
]
