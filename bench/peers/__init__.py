"""One adapter for each peer: its interpreter, its commands, and what runs inside it."""
