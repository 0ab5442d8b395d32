"""torch.ao.quantization: the marks that models have for it, which do nothing until a model is quantized."""

from __future__ import annotations

from typing import Any

from resilin.nn import Module


class QuantStub(Module):
    """The identity: where a quantized model would begin."""

    def __init__(self, qconfig: Any = None) -> None:
        super().__init__()
        self.qconfig = qconfig

    def forward(self, x: Any) -> Any:
        """Return `x`."""
        return x


class DeQuantStub(QuantStub):
    """The identity: where a quantized model would end."""


def __getattr__(name: str) -> Any:
    raise AttributeError(f"torch.ao.quantization has no {name!r}: resilin has no quantization", name=name)
