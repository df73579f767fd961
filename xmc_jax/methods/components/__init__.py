"""Holds the parts that several methods share."""
