"""Read the type of samples and the field map from `dataset.yaml`, without opening anything that it names."""

from __future__ import annotations

from penstock.codec import energon_yaml
from penstock.errors import PenstockError
from penstock.formats.samples.webdataset.nvmeta import (
    DATASET_YAML,
    meta_path,
)
from penstock.store.base import Store

_OLD_SUFFIX = "Webdataset"


def read_field_map(store: Store, root: str) -> dict[str, str]:
    """Return field → stored parts, as the `dataset.yaml` of a folder maps them; empty without a field map."""
    path = meta_path(root, DATASET_YAML)
    try:
        value = energon_yaml.load(store.get(path), path)
    except PenstockError:
        return {}
    fields = value.get("field_map") if isinstance(value, dict) else None
    return {str(field): str(part) for field, part in fields.items()} if isinstance(fields, dict) else {}


def read_sample_type(store: Store, path: str) -> str:
    """Return the sample type in a `dataset.yaml`, without opening anything that it names."""
    if not store.exists(path):
        return f"unknown: no {path.rpartition('/')[2]}"
    try:
        value = energon_yaml.load(store.get(path), path)
    except PenstockError as error:
        return f"can't be read: {error.what}"
    value = value if isinstance(value, dict) else {}
    named = value.get("sample_type")
    name = named.get("__class__") if isinstance(named, dict) else value.get("__class__")
    name = str(name or "unknown")
    if name.endswith(_OLD_SUFFIX) and name != f"Crude{_OLD_SUFFIX}":
        name = f"{name.removesuffix(_OLD_SUFFIX)}Sample"
    fields = value.get("field_map")
    if isinstance(fields, dict):
        name += " of " + ", ".join(f"{field}: {place}" for field, place in fields.items())
    elif value.get("sample_loader"):
        name += f" by {value['sample_loader']}"
    return name
