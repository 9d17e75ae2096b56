"""Orders of MosaicML Streaming: `one_epoch.py` on `sampling.py`, `shuffle.py`, `partition.py`; `epochs.py`."""
