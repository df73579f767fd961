"""The loop of training steps, and what it saves."""
