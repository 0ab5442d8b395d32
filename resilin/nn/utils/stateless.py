"""Calls a module with other parameters and buffers than its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from resilin.core.autograd.checkpoint import around
from resilin.core.tensor import Tensor
from resilin.nn.modules.module import Module


def functional_call(
    module: Module,
    parameter_and_buffer_dicts: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]],
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """What `module(*args, **kwargs)` gives with these tensors in place of its own, by dotted name. Differentiable.

    args: a tuple, or the single argument. Buffers that the call would write are written in the tensors given.
    tie_weights: a tensor of the module that has several names is replaced under all of them.
    strict: every parameter and buffer must be given, and no other name.
    Names of tensors that the module does not have are passed over. A `checkpoint` inside runs again with them, too.
    Raises: ValueError for a name in two of the dicts; RuntimeError that lists missing and unexpected names (strict);
    AttributeError for a name in a sub-module that there is not.
    """
    given = _merged(parameter_and_buffer_dicts)
    own = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    if tie_weights:
        given = {**_tied(given, own), **given}
    if strict:
        _check_names(module, given, own)
    if args is None:
        args = ()
    elif not isinstance(args, tuple):
        args = (args,)
    with around(partial(_replaced, module, given)):
        return module(*args, **(kwargs or {}))


def _merged(dicts: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    if isinstance(dicts, Mapping):
        return dict(dicts)
    merged: dict[str, Tensor] = {}
    for each in dicts:
        if twice := sorted(merged.keys() & each.keys()):
            raise ValueError(f"functional_call: {', '.join(twice)} appear in several of the dictionaries")
        merged.update(each)
    return merged


def _tied(given: dict[str, Tensor], own: dict[str, Tensor]) -> dict[str, Tensor]:
    """The given tensors under the other names of what they replace."""
    values = {id(own[name]): tensor for name, tensor in given.items() if name in own}
    return {name: values[id(tensor)] for name, tensor in own.items() if id(tensor) in values}


def _check_names(module: Module, given: dict[str, Tensor], own: dict[str, Tensor]) -> None:
    missing, unexpected = [n for n in own if n not in given], [n for n in given if n not in own]
    if missing or unexpected:
        raise RuntimeError(
            f"functional_call of {type(module).__name__}: missing names: {', '.join(missing) or 'none'}; "
            f"unexpected names: {', '.join(unexpected) or 'none'}"
        )


@contextmanager
def _replaced(module: Module, given: dict[str, Tensor]) -> Iterator[None]:
    """`given` in the module's tables, and what was there back at the end."""
    places = []
    for name, tensor in given.items():
        path, _, last = name.rpartition(".")
        owner = module.get_submodule(path)
        table: dict[str, Any] = owner._parameters if last in owner._parameters else owner._buffers
        if last not in table:
            continue
        places.append((table, last, table[last], tensor))
    try:
        for table, last, _, tensor in places:
            table[last] = tensor
        yield
    finally:
        for table, last, old, _ in places:
            table[last] = old
