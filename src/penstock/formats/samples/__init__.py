"""Samples of several parts, each a file or a member of a tar: images, audio, video, text, JSON.

| file | for |
|---|---|
| `webdataset/` | tar shards with Energon's `.nv-meta` |
| `folder/` | a folder of files, with Energon's media index if it was prepared |
| `leftovers.py` | files that operating systems leave between samples |
| `media_index.py` | the tables of media and of samples in `.nv-meta/index.sqlite`, common to both formats |
| `sqlite.py` | SQLite files from untrusted writers: read-only, with limits, never trusted |

The two formats do not import each other. Other packages use the registry. Code that prepares, checks and rewrites data
may import `media_index`, `sqlite`, `folder.files`, `folder.source`, `folder.writer`, and of tars
`webdataset.dataset_yaml`, `webdataset.details`, `webdataset.find`, `webdataset.key_index`, `webdataset.manifest`,
`webdataset.members`, `webdataset.nvmeta`, `webdataset.sample_types`, `webdataset.shards`, `webdataset.source`,
`webdataset.splits`, `webdataset.sqlite_index`, `webdataset.tar_write`, `webdataset.typed` and `webdataset.writer`.
"""
