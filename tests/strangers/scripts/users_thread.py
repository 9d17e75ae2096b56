import sys
import threading
import time

from things import loader, short, taken


def work() -> None:
    time.sleep(3)
    print("the thread is done")


threading.Thread(target=work).start()
batches = iter(loader(short))
taken(batches)
print("done")
sys.exit(2)
