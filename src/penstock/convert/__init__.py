"""`convert`: any format to any that can hold it, verified by a digest on both sides.

Documents of tokens go over in runs, so that none passes through Python alone. Memory stays below 512 MB at any size of
the data, but for 12 bytes a document, and for a document that is larger itself. Samples go over in groups, by many
processes: in each about 150 MB, and a few times its largest sample. Killed and run again, both go on.

Files: `run` the one way in · `asked` what its arguments mean · of tokens: `plan`, `eos`, `tokens`, and `documents`
written and read back · of samples: `plan_samples`, `forms` and `columns` of values, `rows` read, `samples` written by
one writer and read back, `groups` by many workers · `output` what is there of the target, and how it becomes visible ·
`partitions` for workers of others.
"""

from penstock.convert.documents import token_digest
from penstock.convert.eos import EosRule
from penstock.convert.partitions import merge_partitions, write_partition
from penstock.convert.run import ConvertReport, convert
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
