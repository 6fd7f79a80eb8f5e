"""Honest numbers about predictions: everything here receives a `Predict` or its log-probabilities, never a network."""
