"""Switches of torch.backends, so that programs that set them run: see `cpu`, `cudnn`, `cuda`, `mps`."""

from resilin.backends import cpu, cuda, cudnn, mps

__all__ = ["cpu", "cuda", "cudnn", "mps"]
