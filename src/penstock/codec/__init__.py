"""Encodes values as bytes and decodes them: pure functions over buffers, no files."""
