"""What the headers of images, sounds and films say, kept in `.nv-meta/index.sqlite`: `run.py` over `rows.py`.

`seen.py` remembers which files were looked at, so that a second run reads only what is new.
"""
