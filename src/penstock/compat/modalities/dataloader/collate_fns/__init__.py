"""Modules of the original's `modalities.dataloader.collate_fns`, under their names."""
