"""Packing of text into tokens.

`pipeline.pack` checks its arguments (`request`) and runs a `job`. The job finds `inputs` and cuts them into tasks, and
encodes these (`encode` in the driver, `tokenize` in workers). Workers read documents (`reading`, `documents`, `chat`)
and encode them with one of the `engines`. `sidecars` are written with the tokens.
"""
