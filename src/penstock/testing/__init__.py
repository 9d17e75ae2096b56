"""Suites and helpers for tests: of Penstock itself, of plug-ins, and of what is built on it."""
