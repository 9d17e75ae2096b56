import atexit
import sys
import time

import things  # noqa: F401

from penstock.cook import FileStore, Prefetch

read = []
atexit.register(lambda: print("few were read" if len(read) < 100 else len(read)))


class Slow:
    path = "slow"

    def get(self, name):
        read.append(name)
        time.sleep(0.2)
        return b"x"


ahead = Prefetch(threads=2)
handles = [ahead.lazy(FileStore(Slow()), f"{number}") for number in range(1000)]  # minutes, if all were read
handles[0].get()
print("done")
sys.exit(5)
