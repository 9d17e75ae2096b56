import sys
import tempfile

if __name__ == "__main__":
    import penstock as ps
    from penstock.testing import MemorySource

    stream = ps.Sequential(MemorySource([{"id": i} for i in range(64)]))
    threads = iter(ps.Loader(stream, 4, rank=0, world=1))
    processes = iter(ps.Loader(stream, 4, rank=0, world=1, worker_kind="processes"))
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    writer = ps.create(f"{folder.name}/out.pbin", format="pbin", token_bytes=2)
    next(threads)
    next(processes)
    sys.excepthook = lambda *_: print("hook")  # keeps all names of this script until modules are gone
    raise ValueError("the script's own")
