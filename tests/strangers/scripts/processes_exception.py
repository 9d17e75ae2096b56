from things import loader, short, taken

if __name__ == "__main__":
    batches = iter(loader(short, worker_kind="processes"))
    taken(batches)
    raise ValueError("the script's own")
