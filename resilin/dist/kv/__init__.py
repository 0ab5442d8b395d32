"""torch.distributed's key-value stores: how the ranks of one group find one another. Not the coordination store."""

from resilin.dist.kv.adapter import CoordinationStore
from resilin.dist.kv.base import PrefixStore, Store
from resilin.dist.kv.file import FileStore
from resilin.dist.kv.hash import HashStore
from resilin.dist.kv.tcp import TCPStore

__all__ = ["CoordinationStore", "FileStore", "HashStore", "PrefixStore", "Store", "TCPStore"]
