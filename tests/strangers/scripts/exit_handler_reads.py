"""Exit handlers go on with a loader, and make another; daemon threads of the program end with it."""

import atexit
import sys
import threading

from things import loader, short, taken

opened = loader(short)
batches = iter(opened)
taken(batches)


def last() -> None:
    print(next(batches)["id"].tolist(), next(iter(opened))["id"].tolist(), opened.consumed)
    print(next(iter(loader(short)))["id"].tolist(), flush=True)


def endless(batches: object) -> None:
    for _ in batches:
        pass


threading.Thread(target=endless, args=(iter(loader(short)),), daemon=True).start()
starting = iter(loader(short, workers=1, worker_kind="processes"))
threading.Thread(target=endless, args=(starting,), daemon=True).start()
atexit.register(last)
sys.exit(3)
