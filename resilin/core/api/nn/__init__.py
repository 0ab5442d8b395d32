"""What layers compute, with the names of torch.nn.functional."""
