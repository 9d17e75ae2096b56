import sys
import tempfile

import things  # noqa: F401

from penstock.compat.streaming import MDSWriter, StreamingDataLoader, StreamingDataset


def main() -> None:
    folder = tempfile.TemporaryDirectory()
    with MDSWriter(out=folder.name, columns={"id": "int"}) as out:
        for number in range(64):
            out.write({"id": number})
    dataset = StreamingDataset(local=folder.name, batch_size=4)
    batches = iter(StreamingDataLoader(dataset, batch_size=4, num_workers=1))
    next(batches)
    with StreamingDataLoader(dataset, batch_size=4, num_workers=1) as closed:
        others = iter(closed)
        next(others)
    with StreamingDataset(local=folder.name, batch_size=4) as alone:
        samples = iter(alone)
        next(samples)
    for read in (lambda: next(others), lambda: next(iter(closed)), lambda: next(samples), lambda: next(iter(alone))):
        try:
            read()
        except ValueError as error:
            print(str(error).partition(".")[0])
    print("done", flush=True)
    sys.exit(8)


if __name__ == "__main__":
    main()
