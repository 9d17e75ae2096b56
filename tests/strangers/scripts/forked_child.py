import gc
import os
import sys

from things import loader, short, taken

opened = loader(short)
batches = iter(opened)
taken(batches)
pid = os.fork()
if not pid:
    taken(batches)  # with threads of its own
    sys.exit(5)
status = os.waitpid(pid, 0)[1]
taken(batches)
ring = [opened, batches]
ring.append(ring)
del ring, opened, batches
gc.collect()
print("done")
sys.exit(os.waitstatus_to_exitcode(status))
