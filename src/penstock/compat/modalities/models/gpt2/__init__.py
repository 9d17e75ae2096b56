"""Modules of the original's `modalities.models.gpt2`, under their names."""
