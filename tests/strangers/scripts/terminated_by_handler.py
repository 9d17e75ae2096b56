import signal
import sys

from things import loader, short

signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))
for number, _batch in enumerate(loader(short)):
    if number == 2:
        print("ready", flush=True)
