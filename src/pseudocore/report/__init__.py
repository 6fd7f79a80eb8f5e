"""Runs for the eye: figures and one static page that needs nothing but a browser."""
