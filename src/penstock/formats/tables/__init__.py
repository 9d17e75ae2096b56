"""Tables in files that Arrow reads; read-only.

| file | for |
|---|---|
| `arrow.py` | rows of Arrow tables as samples, row groups as blocks, columns on demand |
| `parquet.py` | Parquet files and folders of them |
| `hf.py` | output of `datasets.save_to_disk` |
| `lists.py` | columns of token ids and of their marks as numpy arrays |
| `lines.py` | rows as lines of JSON, for the verbs on lines |
| `check.py` | checks of all blocks |

The two formats do not import each other. Other packages use the registry. Code that packs texts from tables may import
`arrow` for its errors, and `parquet` and `hf` for the places of row groups and record batches. The verbs on lines may
import `arrow` and `lines`.
"""
