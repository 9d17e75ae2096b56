"""`convert`: any format to any that can hold it, verified by a digest on both sides.

Documents of tokens go over in runs, so that none passes through Python alone. Memory stays below 512 MB at any size of
the data, but for 12 bytes a document, and for a document that is larger itself. Samples go over in groups, by many
processes: in each about 150 MB, and a few times its largest sample. Killed and run again, both go on.

Files: `run` the one way in · `plan`, `eos`, `tokens` for tokens · `plan_samples` what becomes of samples: `forms` and
`columns` of values, `rows` read · `samples` groups written, `work` what is finished, `assemble` one dataset of them ·
`partitions` for workers of others.
"""

from penstock.convert.eos import EosRule
from penstock.convert.partitions import merge_partitions, write_partition
from penstock.convert.run import ConvertReport, convert, token_digest
from penstock.formats.tokens.common import document_runs

__all__ = [
    "ConvertReport",
    "EosRule",
    "convert",
    "document_runs",
    "merge_partitions",
    "token_digest",
    "write_partition",
]
