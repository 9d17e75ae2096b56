"""Energon's metadata for a directory of tars: `job.py` over `plan.py` (and `guess.py`), `scan.py` and `index.py`."""
