"""What other libraries need to take tensors as they are: one file for each, which runs when that is imported."""
