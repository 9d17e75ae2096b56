"""How a value becomes bytes: pure functions over buffers, no files."""
