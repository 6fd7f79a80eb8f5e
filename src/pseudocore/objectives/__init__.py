"""What condensing methods share: energies, unrolled training, matching, the Gaussian last layer,
the pool.
"""
