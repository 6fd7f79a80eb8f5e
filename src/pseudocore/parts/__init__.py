"""Pieces that two or more methods or inferences share."""
