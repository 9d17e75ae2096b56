"""The original's `streaming.base.storage`: its classes don't exist here, and each says what to use instead."""

from __future__ import annotations

from typing import Any

_READING = (
    "StreamingDataset(remote=…), which downloads data as it is read, or `penstock stage`, which copies it to the cache"
)
_WRITING = "MDSWriter(out=(local, remote)), which uploads what it writes"


def __getattr__(name: str) -> Any:
    if name.endswith("Downloader") or name.startswith("download_"):
        raise ImportError(f"{__name__} has no {name}. Use {_READING}", name=name)
    if name.endswith("Uploader"):
        raise ImportError(f"{__name__} has no {name}. Use {_WRITING}", name=name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=None)
