"""Provide the functions of torch.distributed, by kind."""
