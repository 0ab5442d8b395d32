"""The names of torch.onnx that programs import. There is no exporter: `export` says what there is instead."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, NoReturn

__all__ = [
    "ONNXProgram",
    "OnnxExporterError",
    "OperatorExportTypes",
    "TrainingMode",
    "export",
    "is_in_onnx_export",
    "register_custom_op_symbolic",
    "unregister_custom_op_symbolic",
]


class OnnxExporterError(RuntimeError):
    """What an exporter would raise; here `export` raises NotImplementedError."""


class ONNXProgram:
    """The class of exported programs, which has no instances here."""


class TrainingMode(enum.IntEnum):
    """The mode that an exported module would be in."""

    EVAL = 0
    PRESERVE = 1
    TRAINING = 2


class OperatorExportTypes(enum.IntEnum):
    """What an exporter would do with operators that ONNX lacks."""

    ONNX = 0
    ONNX_ATEN = 1
    ONNX_ATEN_FALLBACK = 2
    ONNX_FALLTHROUGH = 3


def export(model: Any, args: Any = (), f: Any = None, **kwargs: Any) -> NoReturn:
    """Raise NotImplementedError: nothing records what a module does."""
    raise NotImplementedError(
        f"onnx.export({type(model).__name__}): resilin records no programs and exports none. Save the weights by "
        "resilin.checkpoint.save_safetensors(model.state_dict(), f), load them into the same model in PyTorch "
        "(safetensors.torch.load_file) and export it there"
    )


def is_in_onnx_export() -> bool:
    """Return False: nothing is exported."""
    return False


def register_custom_op_symbolic(symbolic_name: str, symbolic_fn: Callable[..., Any], opset_version: int) -> None:
    """Do nothing: no exporter asks how an operator, "NAMESPACE::NAME", is written. ValueError for another name."""
    if "::" not in symbolic_name:
        raise ValueError(f"Failed to register operator {symbolic_name}. The symbolic name must match 'domain::name'")


def unregister_custom_op_symbolic(symbolic_name: str, opset_version: int) -> None:
    """Do nothing, as registering does."""
