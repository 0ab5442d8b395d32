"""Cut a batch into micro-batches and join them again. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from resilin.core import trees
from resilin.core.api.manipulation.joining import cat
from resilin.core.device import device
from resilin.core.tensor import Tensor
from resilin.errors import UsageError, UsageTypeError


class NoChunk:
    """Wrap a tensor that every micro-batch gets whole, e.g. a mask. UsageTypeError for anything else."""

    def __init__(self, inp: Tensor) -> None:
        if not isinstance(inp, Tensor):
            raise UsageTypeError(f"NoChunk only supported for tensors, found: {inp!r:.80}")
        self._tensor = inp

    @property
    def tensor(self) -> Tensor:
        """The tensor."""
        return self._tensor


class BatchValues:
    """The values that go into a partition, or come out of it: one tensor (then it is `atomic`), or several values.

    UsageTypeError where there is no tensor among them: backward would find no way through.
    """

    __slots__ = ("_values", "atomic")

    def __init__(self, values: Tensor | Iterable[Any]) -> None:
        self.atomic = isinstance(values, Tensor)
        self._values: list[Any] = [values] if isinstance(values, Tensor) else _listed(values)

    @property
    def tensor(self) -> Tensor:
        """The one tensor. AttributeError where there are several values."""
        if not self.atomic:
            raise AttributeError("not atomic batch")
        found: Tensor = self._values[0]
        return found

    @property
    def values(self) -> Any:
        """The tensor, or the list of values."""
        return self._values[0] if self.atomic else self._values

    def __repr__(self) -> str:
        return f"BatchValues[atomic={self.atomic}]({self.values!r})"

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> Any:
        return self._values[index]

    def call(self, function: Callable[..., Any]) -> BatchValues:
        """Return what `function` makes of the values, each an argument."""
        return BatchValues(function(*self._values))

    def map(self, function: Callable[[Any], Any]) -> BatchValues:
        """Return the batch with `function(value)` in place of each value."""
        made = [function(value) for value in self._values]
        return BatchValues(made[0] if self.atomic else made)


def _listed(values: Any) -> list[Any]:
    found = list(values) if isinstance(values, Iterable) and not isinstance(values, str | bytes | dict) else None
    if found is None or not any(isinstance(value, Tensor) for value in found):
        raise UsageTypeError(
            f"No tensors found in batch: {values!r:.200}; expected a tensor, or a tuple or list with a tensor in it"
        )
    return found


def check(first_device: device, *inputs: Any) -> None:
    """Refuse inputs that the first partition, which lies on `first_device`, cannot take."""
    if not any(isinstance(value, Tensor) for value in inputs):
        raise UsageTypeError(
            f"inputs do not have any tensors: {inputs!r:.200}; at least one must be a tensor that is cut into "
            "micro-batches"
        )
    for place, value in enumerate(inputs):
        tensor = value.tensor if isinstance(value, NoChunk) else value
        if isinstance(tensor, Tensor) and tensor.device != first_device:
            raise UsageError(
                f"All inputs should be on the same device as the first partition: expected {first_device}, got "
                f"{tensor.device} for input {place}; move it with .to({str(first_device)!r})"
            )


def scatter(*inputs: Any, chunks: int) -> list[BatchValues]:
    """Return the micro-batches of `inputs`: tensors cut along dimension 0 as `Tensor.chunk` does, which may give fewer
    than `chunks` pieces, the last of them smaller; whatever else there is, and what `NoChunk` wraps, goes into each."""
    if len(inputs) == 1 and isinstance(inputs[0], Tensor):
        return [BatchValues(piece) for piece in inputs[0].chunk(chunks)]
    cut = {place: value.chunk(chunks) for place, value in enumerate(inputs) if isinstance(value, Tensor)}
    counts = {place: len(pieces) for place, pieces in cut.items()}
    if len(set(counts.values())) > 1:
        told = " and ".join(f"{count} of input {place}" for place, count in counts.items())
        raise UsageError(
            f"Found different number of chunks produced for inputs: {told}; expected tensors of equal lengths in "
            "dimension 0, and NoChunk around those that are not to be cut"
        )
    whole = [value.tensor if isinstance(value, NoChunk) else value for value in inputs]
    return [
        BatchValues([cut[place][i] if place in cut else value for place, value in enumerate(whole)])
        for i in range(next(iter(counts.values())))
    ]


def shares_gradients(*inputs: Any) -> bool:
    """Return whether a tensor that requires gradients goes whole into every micro-batch: all partitions may add to its
    gradient, in whichever order they come."""
    whole = [value.tensor if isinstance(value, NoChunk) else value for value in inputs if not isinstance(value, Tensor)]
    return any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in trees.flatten(whole)[0])


def gather(outputs: Sequence[BatchValues]) -> Any:
    """Return the batch that the micro-batches `outputs` are the pieces of: tensors joined along dimension 0, of other
    values the list of all micro-batches'. UsageTypeError where the micro-batches are not alike."""
    _check_alike(outputs)
    columns = [list(column) for column in zip(*outputs, strict=True)]
    joined = [cat(column) if isinstance(column[0], Tensor) else column for column in columns]
    return joined[0] if outputs[0].atomic else tuple(joined)


def _check_alike(outputs: Sequence[BatchValues]) -> None:
    kinds = [(batch.atomic, [_kind(value) for value in batch]) for batch in outputs]
    for number, (atomic, types) in enumerate(kinds):
        if (atomic, types) != kinds[0]:
            raise UsageTypeError(
                f"Types for microbatch outputs do not match, found: {_described(*kinds[0])} of micro-batch 0 and "
                f"{_described(atomic, types)} of micro-batch {number}"
            )


def _kind(value: Any) -> type:
    return Tensor if isinstance(value, Tensor) else type(value)


def _described(atomic: bool, types: list[type]) -> str:
    names = ", ".join(kind.__name__ for kind in types)
    return names if atomic else f"({names})"
