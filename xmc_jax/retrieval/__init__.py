"""Ranks labels for queries: sources of candidates, and the hybrid ranker that joins them."""
