"""The pages of `penstock view`: a server on this machine that shows what `penstock.view.facts` finds."""
