"""Pages of `penstock view`: a local server that shows the results of `penstock.view.facts`."""
