"""Parts of tokens, and what becomes of them: one dataset, or a folder of token files, whatever verb made them.

`runs.py` digests of their documents · `assemble.py` parts → one writer, or token files · `join.py` a file joined by the
store that holds its parts · `files.py` the folder.
"""
