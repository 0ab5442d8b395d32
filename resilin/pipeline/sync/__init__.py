"""Pipeline the partitions of one process, with torch.distributed.pipeline.sync's names; docs/pipeline-sync.md."""

from resilin.pipeline.sync.checkpoint import is_checkpointing, is_recomputing
from resilin.pipeline.sync.microbatch import NoChunk
from resilin.pipeline.sync.pipe import Pipe, PipeSequential, WithDevice

__all__ = ["NoChunk", "Pipe", "PipeSequential", "WithDevice", "is_checkpointing", "is_recomputing"]
