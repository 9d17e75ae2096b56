from things import loader, short

for number, _batch in enumerate(loader(short)):
    if number == 2:
        print("ready", flush=True)
