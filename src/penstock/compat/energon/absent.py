"""Names of Energon's that don't exist here, and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping

_LOADED = "load_dataset(path), or get_train_dataset and get_val_dataset with the path: the type is read from the file"
INSTEAD: Mapping[str, str] = dict.fromkeys(("Metadataset", "MetadatasetV2"), _LOADED)
"""Name → what to use."""
