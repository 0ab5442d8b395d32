"""Carry the memory of tensors between workers."""
