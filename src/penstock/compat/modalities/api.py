"""The original's `modalities.api`."""

from penstock.compat.modalities import (
    FileExistencePolicy,
    create_filtered_tokenized_dataset,
    create_raw_data_index,
    create_shuffled_dataset_chunk,
    create_shuffled_jsonl_dataset_chunk,
    merge_packed_data_files,
    pack_encoded_data,
    shuffle_jsonl_data,
    shuffle_tokenized_data,
)
from penstock.compat.modalities.elsewhere import of_modalities

__all__ = [
    "FileExistencePolicy",
    "create_filtered_tokenized_dataset",
    "create_raw_data_index",
    "create_shuffled_dataset_chunk",
    "create_shuffled_jsonl_dataset_chunk",
    "merge_packed_data_files",
    "pack_encoded_data",
    "shuffle_jsonl_data",
    "shuffle_tokenized_data",
]

__getattr__ = of_modalities(__name__, "convert_pytorch_to_hf_checkpoint", "generate_text")
