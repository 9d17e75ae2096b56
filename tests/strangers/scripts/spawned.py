import multiprocessing
import sys

from things import busy_in_torch, loader, taken


def train() -> None:
    batches = iter(loader(busy_in_torch))
    taken(batches)
    sys.exit(9)


if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=train)
    process.start()
    process.join()
    print("done")
    sys.exit(process.exitcode)
