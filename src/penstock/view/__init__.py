"""Shows data: samples in the terminal, and as files of a mounted folder."""
