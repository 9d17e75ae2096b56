"""Shards under one `index.json`, as written by MosaicML Streaming: samples of columns, in files of bounded size.

Only the index lists the shards, so opening a dataset doesn't touch them. A shard is fetched, checked and decompressed
when one of its samples is read.

| file | for |
|---|---|
| `index_json.py` | `index.json`: parsed with every number checked, written byte for byte like the original |
| `index_table.py` | large indexes: parsed once per host into a table that all processes map |
| `format.py` | the `Format` of all shard formats, around a codec for the bytes of a shard |
| `find_index.py` | the index for a path and a split, and the files it lists; names of shards |
| `source.py`, `files.py`, `cache.py` | reading: samples; shards as a whole and in ranges; the cache of open shards |
| `writer.py`, `output.py` | writing: the split into shards; compression, hashes, staging and commit |
| `side.py`, `checks.py`, `repair.py` | the side file, the checks of a dataset, and the repair of its index |
| `merge.py` | several datasets as one |
| `mds/`, `xsv.py`, `json_shards.py` | the codecs: binary columns; CSV, TSV and XSV; lines of JSON |

A codec imports these files and nothing from other codecs. Other packages use the registry. Code that copies shards
unchanged may import `files`, `find_index`, `index_json`, `merge`, `side`, `source` and `writer`.
"""
