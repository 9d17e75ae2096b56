"""Tables in files that Arrow reads; read only.

| file | for |
|---|---|
| `arrow.py` | rows of Arrow tables as samples, row groups as blocks, columns as they are asked for |
| `parquet.py` | Parquet files and folders of them |
| `hf.py` | what `datasets.save_to_disk` writes |
| `lines.py` | rows as lines of JSON, for the verbs on lines |

The two formats do not import each other. Others go through the registry; what packs texts from tables may import
`arrow` for its errors, and `parquet` and `hf` for where row groups, and record batches, lie; the verbs on lines take
`arrow` and `lines`.
"""
