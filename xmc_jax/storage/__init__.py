"""Writes files whole, locks and checks them; keeps run folders and checkpoints."""
