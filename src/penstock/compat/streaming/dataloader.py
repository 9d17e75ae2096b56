"""`StreamingDataLoader`: a torch DataLoader that counts the samples it has delivered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from penstock._optional import require
from penstock.compat.streaming.dataset import StreamingDataset
from penstock.compat.streaming.world import get_world_size
from penstock.errors import ConfigError

_data: Any = require("torch.utils.data", extra="torch")


class StreamingDataLoader(_data.DataLoader):
    """torch's DataLoader, with the state of a StreamingDataset.

    Attributes:
        num_samples_yielded: samples of this rank in the current epoch.

    Examples:
        >>> from penstock.compat.streaming import StreamingDataLoader, StreamingDataset
        >>> loader = StreamingDataLoader(StreamingDataset(local="chat-mds", batch_size=4), batch_size=4)
        >>> batch = next(iter(loader))
        >>> batch["id"].tolist()
        [0, 1, 2, 3]
        >>> state = loader.state_dict()

        Resume after the first batch:

        >>> resumed = StreamingDataLoader(StreamingDataset(local="chat-mds", batch_size=4), batch_size=4)
        >>> resumed.load_state_dict(state)
        >>> next(iter(resumed))["id"].tolist()
        [4, 5, 6, 7]
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.num_samples_yielded = 0
        self._closed = False
        self._running: Any = None

    def __iter__(self) -> Iterator[Any]:
        self._require_open()
        self.num_samples_yielded = 0
        self._running = batches = super().__iter__()
        while True:
            self._require_open()
            try:
                batch = next(batches)
            except StopIteration:
                return
            self.num_samples_yielded += self._get_batch_size(batch)
            yield batch

    def _get_batch_size(self, batch: Any) -> int:
        """Return the number of samples in a batch: a mapping of columns, a tensor, a list of samples or of columns.

        The name is the original's, so that subclasses can override it for other kinds of batches.
        """
        if isinstance(batch, Mapping):
            return len(next(iter(batch.values())))
        if isinstance(batch, (list, tuple)) and not isinstance(batch[0], Mapping):
            return len(batch[0])
        return len(batch)

    def close(self) -> None:
        """Stop torch's workers.

        A second call does nothing. Reading is then an error; the state can still be saved.
        """
        self._closed = True
        # Torch's iterators stop their workers, if they have any; the loader itself keeps persistent workers.
        end_workers = getattr(self._running, "_shutdown_workers", None)
        self._running = self._iterator = None
        if end_workers is not None:
            end_workers()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._closed:
            raise ConfigError("the loader is closed", hint="Create a new one; load_state_dict(…) resumes")

    def state_dict(self) -> dict[str, Any] | None:
        """Return the original's state of the run; None for datasets of other kinds."""
        dataset: Any = self.dataset
        if not isinstance(dataset, StreamingDataset):
            return None
        ranks = get_world_size() // (dataset.replication or 1)
        return dataset.state_dict(self.num_samples_yielded * ranks, False)

    def load_state_dict(self, obj: Mapping[str, Any]) -> None:
        """Resume from a state, at the next iteration."""
        dataset: Any = self.dataset
        if isinstance(dataset, StreamingDataset):
            dataset.load_state_dict(obj)
