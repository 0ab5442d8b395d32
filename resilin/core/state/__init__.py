"""What a tensor has beside its array: shape, order in memory, versions, callbacks; and what changes them in place."""
