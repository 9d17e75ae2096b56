"""The first that is read at all is read by a thread of a program that is over."""

import sys
import threading
import time

from things import loader, short


def read() -> None:
    batches = iter(loader(short))
    print([next(batches)["id"].tolist() for _ in range(20)][-1])


def late() -> None:
    time.sleep(0.5)
    read()


threading.Thread(target=late).start()
sys.exit(2)
