"""PyTorch's place for the names of `resilin.dist.join`."""

from resilin.dist.join import Join, Joinable, JoinHook

__all__ = ["Join", "JoinHook", "Joinable"]
