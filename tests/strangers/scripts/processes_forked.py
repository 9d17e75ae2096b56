import os
import sys

from things import loader, short, taken

if __name__ == "__main__":
    batches = iter(loader(short, worker_kind="processes"))
    taken(batches)
    pid = os.fork()
    if not pid:
        sys.exit(5)
    status = os.waitpid(pid, 0)[1]
    taken(batches, 8)  # more than was fetched ahead
    print("done")
    sys.exit(os.waitstatus_to_exitcode(status))
