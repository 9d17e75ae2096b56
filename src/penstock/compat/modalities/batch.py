"""The original's `modalities.batch`."""

from penstock.compat.modalities.collators import (
    DatasetBatch,
)
from penstock.compat.modalities.elsewhere import of_modalities

__all__ = [
    "DatasetBatch",
]

__getattr__ = of_modalities(
    __name__, "Batch", "EvaluationResultBatch", "InferenceResultBatch", "ResultItem", "TorchDeviceMixin"
)
