"""Automatic differentiation: `tape` records, `engine` walks back, the rest stands on these two."""
