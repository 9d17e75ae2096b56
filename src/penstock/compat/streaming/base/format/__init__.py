"""The original's `streaming.base.format`: its writers, and the shards of a dataset."""

from penstock._facade import modules_of
from penstock.compat.streaming.shards import FileInfo, Reader
from penstock.compat.streaming.writers import CSVWriter, JSONWriter, MDSWriter, TSVWriter, XSVWriter
from penstock.formats.shards.index_json import INDEX_NAME

__getattr__ = modules_of(__name__)

__all__ = [
    "CSVWriter",
    "FileInfo",
    "JSONWriter",
    "MDSWriter",
    "Reader",
    "TSVWriter",
    "XSVWriter",
    "get_index_basename",
]


def get_index_basename() -> str:
    """Name of the index in a dataset's folder."""
    return INDEX_NAME
