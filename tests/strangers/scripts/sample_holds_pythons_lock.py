from things import holds_pythons_lock, loader, taken

batches = iter(loader(holds_pythons_lock, workers=1))
taken(batches)
print("done")
