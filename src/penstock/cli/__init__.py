"""The command line: one `cmd_<verb>.py` for each command, imported when it is called."""
