"""How fast steps are, how much memory they take, and how far that is from what the machine can do:
`pseudocore bench`.
"""
