"""Tables in files that Arrow reads; read only.

| file | for |
|---|---|
| `arrow.py` | rows of Arrow tables as samples, row groups as blocks, columns as they are asked for |
| `parquet.py` | Parquet files and folders of them |
| `hf.py` | what `datasets.save_to_disk` writes |

The two formats do not import each other, and nothing outside the family imports a file of it.
"""
