"""Switches of torch.backends, so that programs that set them run: see `cudnn`, `cuda`, `mps`."""

from resilin.backends import cuda, cudnn, mps

__all__ = ["cuda", "cudnn", "mps"]
