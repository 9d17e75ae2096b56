"""Modules of the original's `modalities.models`, under their names."""
