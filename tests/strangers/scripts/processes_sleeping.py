import sys

from things import loader, sleeps, taken

if __name__ == "__main__":
    batches = iter(loader(sleeps, worker_kind="processes"))
    taken(batches)
    print("done")
    sys.exit(6)
