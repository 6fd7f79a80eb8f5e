"""What the functions of a notebook carry out: reductions, experts, references, distances."""
