"""MosaicML Streaming's orders: `one_epoch.py` over `sampling.py`, `shuffle.py`, `partition.py`; `epochs.py` goes on."""
