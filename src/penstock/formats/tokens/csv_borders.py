"""Document borders in a table next to a file of tokens, as OLMo's tools write it.

`<stem>.csv.gz` next to `<stem>.npy`: gzip, one document per line, `start,end` in tokens and further fields, which are
ignored. Documents are stored back to back from the first token; tokens after the last one are a document too.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import zlib
from collections.abc import Iterator

import numpy as np

from penstock.errors import Corrupt, TooLarge
from penstock.store.base import Store
from penstock.types import IntArray

_RUN = 1 << 16
_LINE_CHARACTERS = 1 << 20


def table_path(path: str) -> str | None:
    """Return the path of the table of a file of tokens; None if the file isn't an `.npy`."""
    return path.removesuffix(".npy") + ".csv.gz" if path.endswith(".npy") else None


def read_table(store: Store, path: str, num_tokens: int) -> IntArray:
    """Return the first token of each document, and the number of tokens: int64[n_docs + 1].

    Memory: 8 bytes per document, and the compressed table. There are never more documents than tokens.

    Args:
        store: store of the table.
        path: path of the table.
        num_tokens: number of tokens in the file that it belongs to.

    Raises:
        Corrupt: not gzip, invalid lines, or documents that aren't back to back in the tokens.
        TooLarge: a line of more than a million characters, or more documents than tokens.
    """
    runs: list[IntArray] = []
    end = 0
    with gzip.open(io.BytesIO(store.get(path)), "rt", encoding="utf-8", newline="") as table:
        rows = csv.reader(_lines(table, path))
        try:
            while part := [_border(row, path) for row in itertools.islice(rows, _RUN)]:
                starts, stops = np.array(part, np.int64).T
                before = np.append(end, stops[:-1])
                wrong = np.flatnonzero((starts != before) | (stops <= starts) | (stops > num_tokens))
                if len(wrong):
                    place = int(wrong[0])
                    raise _corrupt(
                        path,
                        f"document {sum(map(len, runs)) + place} doesn't follow the previous document in the tokens",
                        f"{starts[place]} to {stops[place]}",
                        f"a range starting at {before[place]}, up to {num_tokens}",
                    )
                runs.append(starts)
                end = int(stops[-1])
        except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
            raise _corrupt(path, "the table can't be read", str(error)[:200], "gzip of lines start,end") from error
    rest = [] if end == num_tokens else [end]
    return np.concatenate([*runs, np.array([*rest, num_tokens], np.int64)])


def _border(row: list[str], path: str) -> tuple[int, int]:
    try:
        start, stop = (int(field) for field in row[:2] if len(field) < 19)
    except ValueError:
        raise _corrupt(path, "a line doesn't begin with two numbers", str(row)[:200], "start,end") from None
    return start, stop


def _lines(table: io.TextIOBase, path: str) -> Iterator[str]:
    while line := table.readline(_LINE_CHARACTERS):
        if len(line) == _LINE_CHARACTERS:
            raise TooLarge("a line of the table is too long", path=path, expected=f"below {_LINE_CHARACTERS}")
        yield line


def _corrupt(path: str, what: str, found: str, expected: str) -> Corrupt:
    hint = "Copy it again, or remove it and specify the id between documents with eos_id= (--eos-id)"
    return Corrupt(what, path=path, found=found, expected=expected, hint=hint)
