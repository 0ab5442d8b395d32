"""Arithmetic, reductions, products and special functions, with PyTorch's names."""
