"""Running steps: the loop, the step runner, gradients, profiling, warm-up. No other room knows how
a step is executed.
"""
