"""Selectors: coresets of real training points."""
