from things import loader, never_ends_in_python, taken

batches = iter(loader(never_ends_in_python))
taken(batches)
print("done")
