"""What batches are built of."""
