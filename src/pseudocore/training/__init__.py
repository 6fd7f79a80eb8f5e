"""Training networks: optimisers, losses, experts and pre-trained networks."""
