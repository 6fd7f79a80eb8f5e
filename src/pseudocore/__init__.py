"""pseudocore."""
