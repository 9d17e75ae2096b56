"""Preview of the first files of a directory that takes long to list."""

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
    """Return the first JSONL files in a directory listing as one dataset, if any.

    At most 1,000 of the first 5,000 names, without links. On a remote store this is one listing request.
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
    except (PenstockError, OSError):  # reported when all of it is opened
        return None
    return Opened(folder.shown, "jsonl-files", source, (source,), folder, None, {}, {})
