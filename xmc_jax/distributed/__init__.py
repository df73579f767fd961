"""Runs several processes as one program: devices, split arrays, signals, and the death of a process."""
