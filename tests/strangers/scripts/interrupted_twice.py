from things import loader, sleeps, taken

batches = iter(loader(sleeps))
taken(batches)
print("ready", flush=True)
next(batches)
