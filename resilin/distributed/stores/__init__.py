"""Provide torch.distributed's key-value stores: how ranks of one group find one another. Not the coordination store."""

from resilin.distributed.stores.adapter import CoordinationStore
from resilin.distributed.stores.base import PrefixStore, Store
from resilin.distributed.stores.file import FileStore
from resilin.distributed.stores.hash import HashStore
from resilin.distributed.stores.tcp import TCPStore

__all__ = ["CoordinationStore", "FileStore", "HashStore", "PrefixStore", "Store", "TCPStore"]
