import atexit
import sys

from things import holds_a_lock, loader, lock, taken


def needs() -> None:
    print("needs the lock")
    with lock:
        print("has the lock")


atexit.register(print, "another handler ran")
atexit.register(needs)
batches = iter(loader(holds_a_lock, workers=1))
taken(batches)
print("done")
sys.exit(2)
