"""Who the workers of a group are, and what they have said of themselves."""
