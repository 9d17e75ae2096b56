"""Metadata of images, audio and video, kept in `.nv-meta/index.sqlite`."""
