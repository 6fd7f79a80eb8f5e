"""Figures of runs and one static page about them that needs only a browser."""
