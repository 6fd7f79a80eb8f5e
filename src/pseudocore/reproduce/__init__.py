"""Published tables and our own: their cells, how each is run, what came out, ours beside theirs."""
