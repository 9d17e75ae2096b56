"""A verb that was killed right after its dataset became visible: the same command finds it complete."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.errors import PenstockError
from penstock.formats import files_at, get_format
from penstock.store.place import Place
from penstock.store.unfinished import Once
from penstock.types import Manifest, OpenOptions


def once_dataset(
    place: Place,
    format: str,
    what: dict[str, Any],
    made_by: Mapping[str, Any],
    num_samples: int | None = None,
    side_file: Callable[[], Manifest | None] | None = None,
) -> Once[Manifest]:
    """The work that makes a dataset, known again by the side file that fits its data.

    Args:
        place: where it goes.
        format: its format.
        what: all that decides its bytes, as plain JSON.
        made_by: what its side file says of the work, where the format records that.
        num_samples: how many it will have; None where nobody knows.
        side_file: reads the side file that fits the data; by default that of the opened dataset.
    """

    def of_source() -> Manifest | None:
        source = get_format(format).open(place.store, place.path, OpenOptions())
        manifest = getattr(source, "manifest", None)
        return manifest if isinstance(manifest, Manifest) else None

    def published(_told: Any) -> Manifest | None:
        try:
            manifest = (side_file or of_source)()
        except (PenstockError, OSError):
            return None
        if manifest is None or manifest.format != format:
            return None
        known = [manifest.options[name] == value for name, value in made_by.items() if name in manifest.options]
        return manifest if num_samples in (None, manifest.num_samples) and all(known) else None

    return Once(place.store, place.path, what, files_at(format, place.path), published)


def once_parts(beside: Place, what: dict[str, Any], parts: Sequence[Once[Manifest]]) -> Once[tuple[Manifest, ...]]:
    """The work that makes several datasets, which become visible one after another; its mark stands at `beside`."""

    def published(_told: Any) -> tuple[Manifest, ...] | None:
        found = tuple(one.published(None) for one in parts)
        known = tuple(one for one in found if one is not None)
        return known if len(known) == len(found) else None

    return Once(beside.store, beside.path, what, [file for one in parts for file in one.files], published)
