"""The vocabulary every other package speaks: values, protocols, random streams, configuration, the
one loop.
"""
