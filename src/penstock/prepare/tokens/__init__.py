"""From text to packed tokens: `pack`, and what it is made of.

`pipeline.py` reads as the work goes: what is meant (`understand.py`), which is files (`inputs.py`, `select.py`) and a
tokenizer (`tokenizer.py`, `engines.py`, `oracle.py`); the cut into tasks (`tasks.py`), a task (`tokenize.py`), and the
writer of the parts in order (`assemble.py`); parts, and what is made of them, are in `work/`. Others go through
`penstock.prepare`.
"""
