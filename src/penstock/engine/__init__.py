"""Jobs: run inline, with workers, or in parts of a distributed job, and resumed after a kill.

`run.py` is the driver and `options.py` its options. Unfinished work is in a work folder (`folder.py`, `work.py`): a
plan (`plan.py`), parts (`parts.py`), and records of the second wave. The second wave joins tokens in blocks
(`token_blocks.py`) or into files of a folder (`token_files.py`), shards (`groups.py`), and tars and folders
(`sample_groups.py`). `rows.py` reads samples by number, and `token_shuffle.py` makes parts of tokens in another
document order. `status.py` reports progress.

A *part* is a file that a task has made (`PartName`). Its *piece* is its number among those of the task; with several
outputs, a task makes one for each. The share of the tasks that users choose by `--part i/n` is a *job part* here.
"""
