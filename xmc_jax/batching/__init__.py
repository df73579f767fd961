"""Builds training batches: samples their parts, and joins them."""
