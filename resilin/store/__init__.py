"""Coordination: one interface with etcd v3's model, in memory, in a shared folder, embedded, or in a real etcd.

Importing this package loads no grpc; `connect` with `embedded://` or `etcd://` and `resilin.store.server` do.
"""

from resilin.store.base import Compare, Event, KeyValue, Lease, Op, OpResult, Store, TxnResult, Watch
from resilin.store.connect import connect
from resilin.store.file import FileStore
from resilin.store.memory import MemoryStore

__all__ = [
    "Compare",
    "Event",
    "FileStore",
    "KeyValue",
    "Lease",
    "MemoryStore",
    "Op",
    "OpResult",
    "Store",
    "TxnResult",
    "Watch",
    "connect",
]
