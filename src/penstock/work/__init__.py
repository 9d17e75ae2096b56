"""What unfinished work has finished so far, beside its output, so that the same command goes on: the three journals.

`folder.py` is what they share. `pack.py` (with `parts.py`, the file of a finished task) keeps `.<name>.work`,
`convert.py` keeps `.<name>.convert`, and `energon.py` keeps `.nv-meta.work` in the dataset's folder.
"""
