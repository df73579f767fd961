"""Trains: the loop of steps, the step itself, and the validation between steps."""
