from things import loader, short

if __name__ == "__main__":
    for number, _batch in enumerate(loader(short, worker_kind="processes")):
        if number == 2:
            break
    print("done")
