"""Whether the row map beside a dataset is of these data, and whole."""

from __future__ import annotations

from penstock.abc import Format
from penstock.errors import ConfigError, Corrupt, PenstockError
from penstock.store.place import Place
from penstock.store.row_map import is_damaged, read_row_map, row_map_path
from penstock.types import Depth, Finding, Manifest, OpenOptions

_FIX = "Rebuild the dataset with --keep-map, or remove the map so that `exclude` and `explain` don't use it"


def check_row_map(chosen: Format, place: Place, given: OpenOptions, depth: Depth) -> list[Finding]:
    """What is wrong with the row map; its rows are read at depth `full`, and far away it is looked for there alone."""
    path = row_map_path(place.path)
    if not (place.is_local or depth == "full") or not place.store.exists(path):
        return []
    found = None
    try:
        manifest = getattr(chosen.open(place.store, place.path, given), "manifest", None)
        row_map = read_row_map(place, manifest if isinstance(manifest, Manifest) else None)
        if row_map is not None and depth == "full" and is_damaged(row_map, place.store):
            found = "the rows differ from those written"
    except (ConfigError, Corrupt) as error:
        found = error.what
    except (PenstockError, OSError):
        return []  # the data themselves can't be read, which is said already
    return [Finding(f"{chosen.name}.row-map", "error", path, None, found, None, _FIX)] if found else []
