"""What the models of `models_wide` are made of; `torch` is whichever library runs.

B batch, C channels, H W size, T time or tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


def module(torch: Any, forward: Callable[..., Any], **parts: Any) -> Any:
    """A module with `parts` (modules, parameters, anything), whose forward is `forward(module, *inputs)`."""

    class Module(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part)

        def forward(self, *inputs: Any) -> Any:
            return forward(self, *inputs)

    return Module()


def residual(torch: Any, *body: Any, shortcut: Any = None, last: Any = None) -> Any:
    """The body's result plus the input, or what `shortcut` makes of it; then `last`."""
    nn = torch.nn
    return module(
        torch,
        lambda m, x: m.last(m.body(x) + m.shortcut(x)),
        body=nn.Sequential(*body), shortcut=shortcut or nn.Identity(), last=last or nn.Identity(),
    )  # fmt: skip


def values(torch: Any, shape: tuple[int, ...], seed: int) -> Any:
    """Numbers of mean 0 and variance 1, the same in every library: those of a generator differ."""
    count = 1
    for size in shape:
        count *= size
    places = torch.arange(count, dtype=torch.float64)
    hashed = (places * 12.9898 + seed * 78.233).sin() * 43758.5453
    return ((hashed - hashed.floor()) * 2 - 1).mul(3**0.5).float().view(*shape)


def numbers(torch: Any, shape: tuple[int, ...], below: int, seed: int) -> Any:
    """Integers in [0, below), as `values`."""
    share = (values(torch, shape, seed) / 3**0.5 + 1) / 2
    return (share * below).long().clamp(0, below - 1)


def set_parameters(torch: Any, model: Any) -> None:
    """The same parameters in every library: matrices as He et al. draw them, biases zero, the others as they are."""
    with torch.no_grad():
        for seed, (name, parameter) in enumerate(model.named_parameters()):
            if parameter.dim() > 1:
                fan_in = parameter.numel() // parameter.shape[0]
                parameter.copy_(values(torch, tuple(parameter.shape), seed) * (2 / fan_in) ** 0.5)
            elif "bias" in name:
                parameter.zero_()


def cross_entropy(torch: Any, model: Any, inputs: tuple[Any, ...], target: Any, turn: int) -> Any:
    """The usual loss: classes in the last dimension."""
    out = model(*inputs)
    return torch.nn.functional.cross_entropy(out.reshape(-1, out.shape[-1]), target.reshape(-1))


@dataclass(frozen=True, kw_only=True)
class Wide:
    """What is trained, on batches of what."""

    text: str
    build: Callable[[Any], Any]
    """From the library to the module."""
    batch: Callable[[Any, int], tuple[tuple[Any, ...], Any]]
    """From the library and the number of samples to (inputs, target)."""
    loss: Callable[[Any, Any, tuple[Any, ...], Any, int], Any] = cross_entropy
    """From library, module, inputs, target and the turn to the loss."""
    groups: Callable[[Any], list[Iterable[Any]]] = lambda model: [model.parameters()]
    """The parameters of each turn of a step; a turn has a loss and an optimizer of its own."""
