"""Energon's metadata for a directory of tars."""
