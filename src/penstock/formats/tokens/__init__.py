"""Datasets of token ids: documents as consecutive runs of unsigned integers.

A format of this family is a `TokenSource`: `tokens(start, stop)` and `gather(starts, length)` read by token, documents
are ranges of tokens, and `penstock.pack` cuts windows without depending on the format.

| file | for |
|---|---|
| `common.py` | reading: tokens in a file, mapped or by `pread`; documents over them; requirements on ids |
| `writer.py` | writing: options, counts and digests of all token writers |
| `joined.py` | files made of parts without reading their tokens: the bytes around the parts, combined digests |
| `checks.py` | checking: ids against a vocabulary, EOS at the ends of documents |
| `proof.py` | digests from the side file: of blocks of bytes, runs of documents, or all documents |
| `ids.py` | ids of bounded size in files that state no dtype |
| `source.py`, `csv_borders.py` | token sources: documents by an index, by EOS, or by a table of borders |
| `zarr/` | one-dimensional zarr arrays, read without zarr |
| `pbin/` | Modalities' packed tokens |
| `flat_tokens/` | zarr groups |
| `megatron/` | `.bin` and `.idx` pairs |
| `raw_tokens.py`, `datatrove.py`, `litdata/`, `levanter/` | read only |
| `folder/` | files of pbin, flat_tokens or megatron as one dataset, listed or found; opened through the registry |

A format imports these files and nothing from other formats. Other packages use the registry, and may import `common`,
`joined`, `writer`, `folder.index`, `folder.files` and `folder.side` to make such a folder, and `pbin.index`,
`pbin.layout`, `pbin.source` and `pbin.writer` for the classes of Modalities.
"""
