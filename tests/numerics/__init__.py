"""Numbers against transformers' and torch's own, on tiny random models."""
