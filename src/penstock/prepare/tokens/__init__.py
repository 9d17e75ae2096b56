"""From text to packed tokens: `pack`, and what it is made of.

`pipeline.py` reads as the work goes: which files (`inputs.py`, `select.py`), which tokenizer (`tokenizer.py`,
`engines.py`, `oracle.py`), the cut into tasks (`tasks.py`), a task (`tokenize.py`), and the parts in order
(`assemble.py`); what is finished is kept by `work/pack.py`. Others go through `penstock.prepare`.
"""
