"""Inspection of datasets in every format: searching, comparing, excluding and lineage."""
