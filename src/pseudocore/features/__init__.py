"""Frozen networks whose outputs take the place of inputs, computed once."""
