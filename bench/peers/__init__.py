"""One adapter per peer: its interpreter, its commands, and functions that run in its environment."""
