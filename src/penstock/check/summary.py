"""`info`: what a dataset is, from its headers, index and side file; no data are read."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from penstock.abc import Source, is_token_source
from penstock.check.verify import find_format, open_options
from penstock.types import Manifest, Sample


def summarise(path: str | os.PathLike[str], *, format: str | None = None, **options: Any) -> dict[str, Any]:
    """What a dataset is, as plain JSON values.

    Keys: `path, format, size_bytes, samples, schema, fingerprint`; for tokens also `tokens, token_bytes, eos_id`; and
    `manifest`, what the side file says, or None.

    Raises:
        NotFound: nothing is at `path`.
        FormatError: it can't be opened.
    """
    store, root, chosen = find_format(path, format)
    source = chosen.open(store, root, open_options(options))
    found: dict[str, Any] = {
        "path": os.fspath(path),
        "format": chosen.name,
        "size_bytes": sum(map(store.size, store.list(root))) if store.is_folder(root) else store.size(root),
        "samples": len(source),
        "schema": [msgspec.to_builtins(field) for field in source.schema.fields],
        "fingerprint": source.fingerprint,
    }
    if is_token_source(source):
        found |= {"tokens": source.num_tokens, "token_bytes": source.dtype.itemsize, "eos_id": source.eos_id}
    manifest = manifest_of(source)
    return found | {"manifest": None if manifest is None else msgspec.to_builtins(manifest)}


def manifest_of(source: Source[Sample]) -> Manifest | None:
    """What the side file of a source says; None where it has none."""
    manifest = getattr(source, "manifest", None)
    return manifest if isinstance(manifest, Manifest) else None
