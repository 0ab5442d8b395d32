"""Hold the modules that torch.distributed.nn.api has."""

from resilin.rpc.nn.api import remote_module

__all__ = ["remote_module"]
