"""The program's threads read on after its last line, by a loader that runs, and by one that is made then."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from things import loader, short

COUNT = 100


def read(batches: object, name: str) -> None:
    numbers = [number for _ in range(COUNT) for number in next(batches)["id"].tolist()]
    assert numbers == [number % 64 for number in range(4 * COUNT)]
    print(f"{name} has read all\n", end="", flush=True)  # one write: threads print at once


def late() -> None:
    time.sleep(0.5)
    read(iter(loader(short)), "the late one")


for name in ("the first", "the second"):
    threading.Thread(target=read, args=(iter(loader(short)), name)).start()
ThreadPoolExecutor(1).submit(read, iter(loader(short)), "the pool's")
threading.Thread(target=late).start()
sys.exit(2)
