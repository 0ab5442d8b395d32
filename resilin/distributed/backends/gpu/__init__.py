"""Run collectives of tensors on a GPU."""
