"""What `penstock modalities …` runs: Modalities' commands over its configuration files."""
