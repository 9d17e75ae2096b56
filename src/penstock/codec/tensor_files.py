"""Files of `torch.save`, read without running code."""

from __future__ import annotations

import io
import pickle  # only for its exception
import re
import zipfile
from typing import Any

from penstock._optional import require
from penstock.errors import TooLarge, UnsafeData


def decode_tensor_file(data: bytes, most_bytes: int) -> Any:
    """Return the tensors and plain values that `torch.save` wrote.

    Raises:
        UnsafeData: the file refers to other objects or was written before torch 1.6, or the installed torch is older
            than 2.6.
        TooLarge: the decompressed size exceeds `most_bytes`.
        MissingExtra: torch is not installed.
        RuntimeError, zipfile.BadZipFile: the file is damaged.
    """
    torch: Any = require("torch", extra="torch")
    # Before torch 2.6, `weights_only` could be tricked into running code. A file that isn't a zip was written before
    # torch 1.6, and its sizes are trusted before they are read.
    if torch.__version__ < "2.6" or not data.startswith(b"PK"):
        raise UnsafeData("the tensor file can't be read without running code")
    file = io.BytesIO(data)
    with zipfile.ZipFile(file) as archive:
        size_bytes = sum(entry.file_size for entry in archive.infolist())
    if size_bytes > most_bytes:
        raise TooLarge("the tensor file is too large", found=f"{size_bytes} bytes", expected=f"{most_bytes}")
    file.seek(0)
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        found = named[1] if named else "objects other than tensors and plain values"
        raise UnsafeData("the tensor file would run code", found=found) from None
