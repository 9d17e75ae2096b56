from things import loader, plain, taken

with loader(plain) as opened:
    batches = iter(opened)
    taken(batches)
opened.close()
for read in (lambda: next(batches), lambda: iter(opened)):
    try:
        read()
    except ValueError as error:
        print(str(error).partition(".")[0])
print(opened.step, opened.state_dict()["consumed"])
