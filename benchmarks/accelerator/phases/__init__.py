"""Phases of the accelerator suite: each function takes 'full' or 'tiny' and returns what it found."""
