"""Special functions: the names of torch.special."""
