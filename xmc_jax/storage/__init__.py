"""Files on disk: written whole, locked, checked; run folders and checkpoints."""
