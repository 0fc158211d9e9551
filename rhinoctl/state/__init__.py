"""State on disk: files, stores, checkpoints and locks (design, section 5)."""
