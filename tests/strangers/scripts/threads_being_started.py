import sys
import threading
import time

import things  # noqa: F401

from penstock._threads import Worker


class Slow(threading.Event):
    """Says that a thread has come up after a while."""

    def set(self) -> None:
        coming.set()
        for _ in range(30):
            time.sleep(0.01)
        super().set()


def start_another() -> None:
    other = Worker(lambda: None, "other", stop=lambda: None, doing=lambda: "nothing")
    other._started = Slow()
    other.start()


coming = threading.Event()
Worker(start_another, "starter", stop=lambda: None, doing=lambda: "starting another").start()
coming.wait()
print("done")
sys.exit(4)
