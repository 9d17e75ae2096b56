"""The original's `modalities.dataloader.create_packed_data`."""

from penstock.compat.modalities.commands.data import (
    join_embedded_stream_data,
)
from penstock.compat.modalities.elsewhere import elsewhere
from penstock.compat.modalities.packed import (
    EmbeddedStreamData,
)

__all__ = [
    "EmbeddedStreamData",
    "join_embedded_stream_data",
]

__getattr__ = elsewhere(
    __name__, {"PackedDataGenerator": "pack_encoded_data(config) of penstock.compat.modalities, or penstock.pack"}
)
