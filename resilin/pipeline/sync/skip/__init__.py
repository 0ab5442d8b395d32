"""Skip connections: what one layer of a Sequential stashes, a later one pops, in whichever partitions they are."""

from resilin.pipeline.sync.skip.namespace import Namespace
from resilin.pipeline.sync.skip.skippable import pop, skippable, stash, verify_skippables

__all__ = ["Namespace", "pop", "skippable", "stash", "verify_skippables"]
