"""The parts of a training batch and the builder that joins them."""
