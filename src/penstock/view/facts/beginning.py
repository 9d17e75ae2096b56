"""The first files of a folder that takes long to list, so that they can be looked at meanwhile."""

from __future__ import annotations

from itertools import islice

from penstock.errors import PenstockError
from penstock.formats import SUFFIXES, open_source
from penstock.store.find import peek_names
from penstock.store.place import Place
from penstock.view.facts.opening import Opened

MOST_FILES = 1000
_MOST_ENTRIES = 5000


def first_files_of(folder: Place) -> Opened | None:
    """The first JSONL files that a look into a folder comes upon, as one dataset; None where there are none.

    At most 1,000 of the first 5,000 names; links are left out. Far away it is one request, as for any listing.
    """
    try:
        if not folder.is_folder():
            return None
        named = (one for one in peek_names(folder.store, folder.path, _MOST_ENTRIES) if one.endswith(SUFFIXES["jsonl"]))
        found = islice((one for one in map(folder.child, named) if not one.is_link()), MOST_FILES)
        files = [one.path for one in found]
        if not files:
            return None
        source = open_source(files)
    except (PenstockError, OSError):  # it is told by who opens all of it
        return None
    return Opened(folder.shown, "jsonl-files", source, (source,), folder, None, {}, {})
