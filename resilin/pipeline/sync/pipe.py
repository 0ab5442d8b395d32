"""`Pipe`: a Sequential whose partitions work on different micro-batches at the same time."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, NoReturn, Self

from resilin.core.device import CPU
from resilin.core.device import device as device_of
from resilin.core.tensor import Tensor
from resilin.errors import UsageError, UsageTypeError
from resilin.nn.modules.container import ModuleList, Sequential
from resilin.nn.modules.module import Module
from resilin.pipeline.sync import microbatch
from resilin.pipeline.sync.batchnorm import DeferredBatchNorm
from resilin.pipeline.sync.microbatch import NoChunk
from resilin.pipeline.sync.partitions import PipeSequential, WithDevice, split, verify_module
from resilin.pipeline.sync.pipeline import Pipeline
from resilin.pipeline.sync.result import reference
from resilin.pipeline.sync.skip.layout import inspect_skip_layout
from resilin.pipeline.sync.skip.skippable import verify_skippables
from resilin.rpc.references.rref import RRef

__all__ = ["NoChunk", "Pipe", "PipeSequential", "WithDevice"]

_MODES = ("always", "except_last", "never")


class Pipe(Module):
    """Cut each batch into micro-batches, and take them through the partitions of `module` side by side.

    module: a Sequential. Children next to one another on one device are a partition; on the CPU each child is one.
    chunks: the number of micro-batches; a batch gives fewer when it is too small, and the last may be smaller.
    checkpoint: which micro-batches backward computes again, instead of keeping what they leave: "always" all of them,
        "except_last" all but the last of a batch, "never" none. In evaluation and without gradients: none.
    deferred_batch_norm: update running statistics once a batch, by those of the whole batch (`DeferredBatchNorm`).
        Batch normalization in `module` is replaced in place.

    Weights, gradients and results have the bits of the same layers called for each micro-batch in turn, and joined:
    `cat([module(x) for x in batch.chunk(chunks)])`. Random numbers of micro-batch i are those of `resilin.keyed(n, i)`,
    with n the offset of the generator, which a forward that draws any moves by one. State dicts name layers
    "partitions.j.k".

    Raises: UsageTypeError (a TypeError) for what is no Sequential, and for skip connections that do not match;
    UsageError (a ValueError) for wrong arguments, duplicate children, a child on several devices, parameters shared
    across devices, and partitions on several GPUs.
    """

    def __init__(
        self, module: Sequential, chunks: int = 1, checkpoint: str = "except_last", deferred_batch_norm: bool = False
    ) -> None:
        super().__init__()
        chunks, checkpoint = int(chunks), str(checkpoint)
        if chunks <= 0:
            raise UsageError(f"number of chunks must be positive integer, got {chunks}")
        if checkpoint not in _MODES:
            raise UsageError(f"checkpoint is not one of 'always', 'except_last', or 'never': got {checkpoint!r:.80}")
        verify_module(module)
        verify_skippables(module)
        partitions = split(module)
        self.chunks, self.checkpoint = chunks, checkpoint
        if deferred_batch_norm:
            DeferredBatchNorm.convert_deferred_batch_norm(module, chunks)
            partitions = split(module)
        self.devices = [partition.device for partition in partitions]
        self.partitions = ModuleList([partition.sequential() for partition in partitions])

    def __len__(self) -> int:
        return sum(len(partition) for partition in self.partitions)

    def __iter__(self) -> Iterator[Module]:
        for partition in self.partitions:
            yield from partition

    def __getitem__(self, index: int) -> Module:
        return list(self)[operator.index(index)]

    def cuda(self, device: Any = None) -> NoReturn:
        """Raise UsageTypeError: each partition stays where it is."""
        raise _moving_denied()

    def cpu(self) -> NoReturn:
        """Raise UsageTypeError: each partition stays where it is."""
        raise _moving_denied()

    def to_empty(self, *, device: Any, recurse: bool = True) -> NoReturn:
        """Raise UsageTypeError: each partition stays where it is."""
        raise _moving_denied()

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Convert parameters and buffers to a dtype. UsageTypeError for a device: each partition stays where it is."""
        moves = kwargs.keys() & {"device", "tensor", "other"}
        if moves or (args and isinstance(args[0], device_of | int | str | Tensor)):
            raise _moving_denied()
        return super().to(*args, **kwargs)

    def forward(self, *inputs: Any) -> RRef[Any]:
        """Return an RRef of what `module` makes of `inputs`; `local_value()` gives it.

        Tensors are cut along dimension 0, whatever else there is (and what `NoChunk` wraps) goes into every micro-batch
        whole. A partition gets and gives one tensor, or several values, at least one of them a tensor. Results are
        joined; of those that are no tensors it is the list of all micro-batches'. An error in one partition ends the
        others with their current micro-batch, and is raised here.
        """
        microbatch.check(self.devices[0] if self.devices else CPU, *inputs)
        if not self.devices:
            return reference(inputs[0] if len(inputs) == 1 else inputs)
        batches = microbatch.scatter(*inputs, chunks=self.chunks)
        for norm in (each for each in self.modules() if isinstance(each, DeferredBatchNorm)):
            norm.begin(len(batches))
        pipeline = Pipeline(list(self.partitions), self.devices, inspect_skip_layout(list(self.partitions)))
        shared = microbatch.shares_gradients(*inputs)  # then all add to them in one order
        return reference(microbatch.gather(pipeline.run(batches, self._checkpointed(len(batches)), shared)))

    def _checkpointed(self, batches: int) -> int:
        """Return how many micro-batches, the first ones, backward computes again."""
        if not self.training:
            return 0
        return {"always": batches, "except_last": batches - 1, "never": 0}[self.checkpoint]

    def extra_repr(self) -> str:
        """How batches are cut."""
        return f"chunks={self.chunks}, checkpoint={self.checkpoint!r}"


def _moving_denied() -> UsageTypeError:
    return UsageTypeError(
        "denied to move parameters and buffers, because Pipe should manage device placement: move the layers, or wrap "
        "them in WithDevice, before they are given to Pipe"
    )
