"""Indexing, joining and rearranging, with PyTorch's names."""
