"""Creates and opens runs, evaluates them, and ranks labels with them."""
