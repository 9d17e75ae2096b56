"""Encoders and decoders of values as bytes: pure functions over buffers, no files."""
