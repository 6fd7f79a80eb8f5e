"""Pseudo-coresets built to match a posterior."""
