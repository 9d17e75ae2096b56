"""The original's `streaming.base.util`."""

from penstock.compat.streaming.util import (
    bytes_to_int,
    clean_stale_shared_memory,
    get_import_exception_message,
    get_list_arg,
    merge_index,
    number_abbrev_to_int,
    retry,
    wait_for_file_to_exist,
)

__all__ = [
    "bytes_to_int",
    "clean_stale_shared_memory",
    "get_import_exception_message",
    "get_list_arg",
    "merge_index",
    "number_abbrev_to_int",
    "retry",
    "wait_for_file_to_exist",
]
