"""The loop of training steps, the step itself, and the validation between them."""
