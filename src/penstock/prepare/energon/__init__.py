"""Energon's metadata for a folder of tars: `run.py`, after `plan.py` and `guess.py`; `work.py` keeps what is done."""
