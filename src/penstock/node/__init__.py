"""Base classes of sources and streams that are built on others."""
