"""`convert`: any format to any that can hold it, verified by a digest that the format does not change.

Documents go over in runs, so that none passes through Python alone. Memory stays below 512 MB at any size of the data,
but for 12 bytes a document, and for a document that is larger itself. Killed and run again, it goes on: what was
written is compared, not written again.

Files: `run` does it · `plan` what goes where · `eos` the rule for EOS tokens.
"""

from penstock.convert.eos import EosRule
from penstock.convert.run import ConvertReport, convert, token_digest
from penstock.formats._tokens import document_runs

__all__ = ["ConvertReport", "EosRule", "convert", "document_runs", "token_digest"]
