"""Datasets of token ids: documents as runs of unsigned integers, one after another.

A format of this family is a `TokenSource`: `tokens(start, stop)` and `gather(starts, length)` read by token, documents
are ranges of tokens, and a window (`penstock.pack`) is cut from it without knowing which format it is.

| file | for |
|---|---|
| `common.py` | reading: tokens in a file, mapped or by `pread`; documents over them; what a caller requires of ids |
| `writer.py` | writing: what every token writer takes, counts and digests |
| `joined.py` | files made of parts without a look at their tokens: what stands around these, digests that join |
| `checks.py` | checking: ids against a vocabulary, EOS at the ends of documents |
| `ids.py` | ids of bounded size in files that state no dtype |
| `source.py`, `csv_borders.py` | token sources: documents by an index, by EOS, or by a table of borders |
| `zarr/` | one-dimensional zarr arrays, read without zarr |
| `pbin/` | Modalities' packed tokens |
| `flat_tokens/` | zarr groups |
| `megatron/` | `.bin` and `.idx` pairs |
| `raw_tokens.py`, `datatrove.py`, `litdata/`, `levanter/` | read only |
| `folder/` | files of the three above that are one dataset, listed or found: each is opened through the registry |

A format imports these files and nothing of another format. Others go through the registry, and may import `common`,
`joined`, `folder.index`, `folder.files` and `folder.side` to make such a folder, and `pbin.index`, `pbin.layout`,
`pbin.source` and `pbin.writer` for the names of Modalities.
"""
