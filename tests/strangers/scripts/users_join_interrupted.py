"""Python up to 3.12 takes a thread for ended whose `join` was interrupted: nobody waits for it, though it runs."""

import signal
import sys
import threading

from things import loader, short, taken


def interrupt(number: int, frame: object) -> None:
    raise TimeoutError


never = threading.Event()
waits = threading.Thread(target=never.wait)
waits.start()
batches = iter(loader(short))
taken(batches)
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.5)
try:
    waits.join()
except TimeoutError:
    print("interrupted")
if waits.is_alive():
    never.set()  # a later Python: the thread is waited for, and has to end
sys.exit(2)
