"""Give the names of `resilin.distributed.api.join` PyTorch's place."""

from resilin.distributed.api.join import Join, Joinable, JoinHook

__all__ = ["Join", "JoinHook", "Joinable"]
