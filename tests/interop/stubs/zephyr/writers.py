"""Three names to import."""

ThreadedBatchWriter = batchify = ensure_parent_dir = None
