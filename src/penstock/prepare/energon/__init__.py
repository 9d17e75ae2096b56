"""Energon's metadata for a folder of tars: `run.py` over `scan.py`, after `plan.py` and `guess.py`."""
