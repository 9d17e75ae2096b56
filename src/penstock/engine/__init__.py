"""What unfinished work has finished so far, beside its output or in it, so that the same command goes on.

`folder.py` is the folder and its lock, `shared.py` the one protocol of all verbs: `plan.py` is put once, `parts.py` are
facts, `groups.py` makes one dataset of groups of shards, `sharing.py` says what a run does of them, and `status.py`
looks from outside. `tokens/` makes datasets of parts of tokens.
"""
