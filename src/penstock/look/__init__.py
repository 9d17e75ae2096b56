"""Looking into datasets of every format: where a sample is, in what two differ, and what one was made of."""
