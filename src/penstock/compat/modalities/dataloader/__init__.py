"""Modules of the original's `modalities.dataloader`, under their names."""
