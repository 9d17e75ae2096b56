"""Base classes of sources and streams that are made of others."""
