"""Metadata of images, audio and video, kept in `.nv-meta/index.sqlite`: `run.py` over `rows.py`.

`seen.py` records which files were read, so that the next run reads only new and changed files.
"""
