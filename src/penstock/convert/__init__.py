"""Conversion from any format to any that can store the data, verified by a digest on both sides.

Token documents are copied in runs. Memory stays below 512 MB for any size of the data, plus 12 bytes per document, or
more for a document that is larger itself. Samples are copied in groups, by several processes, each with about 150 MB
and a few times its largest sample. An interrupted conversion resumes when it is repeated.
"""

from penstock.convert.job import ConvertReport
from penstock.convert.partitions import merge_partitions, write_partition
from penstock.convert.request import EosRule
from penstock.convert.run import convert
from penstock.convert.tokens import token_digest
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
