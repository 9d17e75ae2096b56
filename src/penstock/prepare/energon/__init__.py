"""Energon's metadata for a folder of tars: `request.py`, `plan.py` (and `guess.py`), `scan.py`, `run.py`."""
