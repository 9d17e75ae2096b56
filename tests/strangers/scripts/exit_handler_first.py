"""The first that is read at all is read by an exit handler."""

import atexit
import sys

from things import loader, short


def read() -> None:
    batches = iter(loader(short))
    print([next(batches)["id"].tolist() for _ in range(20)][-1])


atexit.register(read)
sys.exit(2)
