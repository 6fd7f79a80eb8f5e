"""Honest numbers about predictions: all here but the slice in `landscape.py` receives a `Predict`
or its log-probabilities, no network.
"""
