"""Shards under one `index.json`, as MosaicML Streaming writes them: samples of columns, in files of bounded size.

The index alone says which shards there are, so a dataset is opened without looking at them, and a shard is fetched,
checked and expanded when a sample of it is read.

| file | for |
|---|---|
| `index_json.py` | `index.json`: parsed with every number checked, written in the original's bytes |
| `format.py` | the `Format` of all, around a codec that knows a shard's bytes |
| `find_index.py` | the index that a path and a split mean, and the files that it lists; names of shards |
| `source.py`, `files.py`, `cache.py` | reading: samples; shards whole and in ranges; those that are kept expanded |
| `writer.py`, `output.py`, `upload.py` | writing: the cut into shards; staging them; sending each when it is finished |
| `side.py`, `checks.py`, `repair.py` | the side file, what is wrong with a dataset, and what can be mended |
| `merge.py` | several datasets as one |
| `mds/`, `xsv.py`, `json_shards.py` | the codecs: binary columns; CSV, TSV and XSV; lines of JSON |

A codec imports these files and nothing of another codec. Others go through the registry; what copies shards as they are
may import `files`, `find_index`, `index_json`, `merge`, `side`, `source`, `upload` and `writer`.
"""
