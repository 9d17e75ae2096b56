"""What a run leaves that is killed when its output is complete: whoever finds the output complete ends it."""

from __future__ import annotations

import re

from penstock.formats import files_at, get_format, owned_by
from penstock.store._remote_claims import forget_claim
from penstock.store.outputs import claimed, sweep_complete
from penstock.store.place import Place
from penstock.store.side_file import NEXT
from penstock.types import OpenOptions


def sweep_made(output: Place, format: str) -> None:
    """Remove what lies hidden beside a complete output: locks, unfinished files, the folder that it replaced.

    What others hold, who may be about to end the same work, is theirs to sweep.
    """
    sweep_complete(output.store, files_at(format, output.path), owned_by(format, output.store))


def end_made(output: Place, format: str, work: str | None) -> None:
    """Do what was still to do when an output became visible; nobody else is at its work.

    Side files get their final names; what was replaced, and waits for its end, is removed, as what names a writer of
    the work, of which this is the digest of the plan.

    Raises:
        PrepareError: another writer holds the output.
    """
    if work is not None:
        for path in files_at(format, output.path):
            forget_claim(output.store, path, work)
    name = re.escape(output.name)
    kept = re.compile(rf"\.{name}\.replaced\..*|{name}\..*{re.escape(NEXT)}")
    if any(kept.fullmatch(one) for one in output.folder().names()):
        with claimed(output.store, *files_at(format, output.path)) as held:
            get_format(format).repair(held, output.path, OpenOptions(), [], write=True)
