"""Modules that lie at other workers, with torch.distributed.nn's names; docs/rpc.md."""

from resilin.rpc.nn import api
from resilin.rpc.nn.api.remote_module import RemoteModule

__all__ = ["RemoteModule", "api"]
