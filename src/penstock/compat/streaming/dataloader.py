"""`StreamingDataLoader`: a torch DataLoader that knows how many samples it has handed out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from penstock._optional import require
from penstock.compat.streaming.dataset import StreamingDataset

_data: Any = require("torch.utils.data", extra="torch")


class StreamingDataLoader(_data.DataLoader):
    """Torch's DataLoader, with the state of a StreamingDataset.

    Attributes:
        num_samples_yielded: samples of this rank in the running epoch.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.num_samples_yielded = 0

    def __iter__(self) -> Iterator[Any]:
        self.num_samples_yielded = 0
        for batch in super().__iter__():
            self.num_samples_yielded += self._get_batch_size(batch)
            yield batch

    def _get_batch_size(self, batch: Any) -> int:
        """Samples in a batch: of columns by name, of a tensor, of a list of samples, or of a list of columns.

        The original's name: a subclass may have its own, for batches of another kind.
        """
        if isinstance(batch, Mapping):
            return len(next(iter(batch.values())))
        if isinstance(batch, (list, tuple)) and not isinstance(batch[0], Mapping):
            return len(batch[0])
        return len(batch)

    def state_dict(self) -> dict[str, Any] | None:
        """The original's state of the run; None over another dataset."""
        dataset: Any = self.dataset
        if not isinstance(dataset, StreamingDataset):
            return None
        ranks = int(os.environ.get("WORLD_SIZE", "1")) // (dataset.replication or 1)
        return dataset.state_dict(self.num_samples_yielded * ranks, False)

    def load_state_dict(self, obj: Mapping[str, Any]) -> None:
        """Go on from a state, at the next iteration."""
        dataset: Any = self.dataset
        if isinstance(dataset, StreamingDataset):
            dataset.load_state_dict(obj)
