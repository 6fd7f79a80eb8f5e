"""What selectors share: budgets, last-layer gradients, greedy maximisation, facility location."""
