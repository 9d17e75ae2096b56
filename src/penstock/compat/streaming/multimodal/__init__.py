"""The original's `streaming.multimodal`: videos in the shards, or in separate files."""

from __future__ import annotations

from typing import Any

from penstock._facade import modules_of
from penstock.compat.streaming.dataset import StreamingDataset
from penstock.compat.streaming.text import AS_THERE
from penstock.errors import ConfigError
from penstock.formats.shards.index_json import require_inside
from penstock.store.place import fixed_path, local_place, place_of

__getattr__ = modules_of(__name__)

__all__ = ["StreamingInsideWebVid", "StreamingOutsideDTWebVid", "StreamingOutsideGIWebVid"]


class StreamingInsideWebVid(StreamingDataset):
    """Videos in the shards.

    Args:
        options: of `StreamingDataset`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**AS_THERE, **options})


class StreamingOutsideGIWebVid(StreamingDataset):
    """Videos in separate files, at the path in `content_path`; their bytes are the column `content`.

    A file in `extra_local` is read from there, else from `extra_remote`, through the cache folder.

    Args:
        extra_local: folder of videos.
        extra_remote: folder or URL of videos.
        options: of `StreamingDataset`.

    Raises:
        ConfigError: only one of both folders is given, which the original ignores.
    """

    def __init__(self, *, extra_local: str | None = None, extra_remote: str | None = None, **options: Any) -> None:
        if bool(extra_local) != bool(extra_remote):
            raise ConfigError("videos next to the shards need extra_local= and extra_remote=", found="one of them")
        super().__init__(**{**AS_THERE, **options})
        self.extra_local = extra_local
        self.extra_remote = extra_remote
        self._extra = [fixed_path(folder) for folder in (extra_local, extra_remote) if folder]

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """Return sample `sample_id`, with its video.

        Raises:
            NotFound: there is no such video.
            UnsafeData: the path leads out of the folder.
        """
        found: Any = super().get_item(sample_id, retry)
        if self._extra:
            name = str(found["content_path"])
            require_inside(name)
            local, remote = self._extra
            near = local_place(local, "extra_local").child(name)
            place = near if near.exists() else place_of(remote).child(name)
            found["content"] = place.store.get(place.path)
        return found


class StreamingOutsideDTWebVid(StreamingOutsideGIWebVid):
    """Same as the base class: here, all remote files are fetched ahead of use, or on demand."""
