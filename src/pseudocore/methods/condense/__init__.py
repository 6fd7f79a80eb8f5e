"""Dataset condensation: synthetic points for plain training."""
