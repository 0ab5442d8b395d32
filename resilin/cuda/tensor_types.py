"""The older types of tensors of CUDA devices: `cuda.FloatTensor` and its like."""

from __future__ import annotations

from resilin.core.api.conversion.tensor_types import TensorType


class BFloat16Tensor(metaclass=TensorType, device_type="cuda"):
    """Tensors of bfloat16 on a CUDA device."""


class BoolTensor(metaclass=TensorType, device_type="cuda"):
    """Tensors of bool on a CUDA device."""


class ByteTensor(metaclass=TensorType, device_type="cuda"):
    """Tensors of uint8 on a CUDA device."""


class CharTensor(metaclass=TensorType, device_type="cuda"):
    """Tensors of int8 on a CUDA device."""


class DoubleTensor(metaclass=TensorType, device_type="cuda"):
    """Tensors of float64 on a CUDA device."""


class FloatTensor(metaclass=TensorType, device_type="cuda"):
    """Tensors of float32 on a CUDA device."""


class HalfTensor(metaclass=TensorType, device_type="cuda"):
    """Tensors of float16 on a CUDA device."""


class IntTensor(metaclass=TensorType, device_type="cuda"):
    """Tensors of int32 on a CUDA device."""


class LongTensor(metaclass=TensorType, device_type="cuda"):
    """Tensors of int64 on a CUDA device."""


class ShortTensor(metaclass=TensorType, device_type="cuda"):
    """Tensors of int16 on a CUDA device."""
