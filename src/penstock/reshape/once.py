"""A verb that was killed right after its output became visible: the same command finds it complete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.abc import Store
from penstock.errors import PenstockError
from penstock.formats import files_at, get_format
from penstock.store.outputs import sweep_killed
from penstock.store.unfinished import has_mark, remove_mark, set_mark
from penstock.types import Manifest, OpenOptions


@dataclass(frozen=True, slots=True)
class Once:
    """One output of one piece of work.

    Attributes:
        store: where it goes.
        path: its path.
        format: its format.
        what: all that decides its bytes, as plain JSON.
        told: what its side file says of the work, where the format records that.
        num_samples: how many it will have; None where nobody knows.
        side_file: reads the side file that fits the data; by default that of the opened dataset.
    """

    store: Store
    path: str
    format: str
    what: dict[str, Any]
    told: Mapping[str, Any]
    num_samples: int | None = None
    side_file: Callable[[], Manifest | None] | None = None

    def made(self) -> Manifest | None:
        """What a run of the same work made before it was killed, by its side file; sweeps what else that run left.

        Raises:
            PrepareError: somebody writes this output.
        """
        if not has_mark(self.store, self.path, self.what):
            return None
        manifest = self.published()
        if manifest is not None:
            sweep_killed(self.store, files_at(self.format, self.path))
            remove_mark(self.store, self.path)
        return manifest

    def published(self) -> Manifest | None:
        """The side file of what is there, where it tells of this work."""
        try:
            manifest = (self.side_file or self._side_file_of_source)()
        except (PenstockError, OSError):
            return None
        if manifest is None or manifest.format != self.format:
            return None
        known = [manifest.options[name] == value for name, value in self.told.items() if name in manifest.options]
        right = self.num_samples in (None, manifest.num_samples) and all(known)
        return manifest if right else None

    def commit(self, commit: Callable[[], Manifest]) -> Manifest:
        """Make it visible, with a mark beside it until that is done."""
        set_mark(self.store, self.path, self.what)
        try:
            return commit()
        finally:
            remove_mark(self.store, self.path)

    def _side_file_of_source(self) -> Manifest | None:
        source = get_format(self.format).open(self.store, self.path, OpenOptions())
        manifest = getattr(source, "manifest", None)
        return manifest if isinstance(manifest, Manifest) else None
