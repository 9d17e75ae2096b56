"""Modalities' commands over its configuration files, which `penstock modalities …` runs."""
