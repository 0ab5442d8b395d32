"""Pickle tensors as holes, whose memory travels in blocks, and fill the holes."""

from __future__ import annotations

import ctypes
import pickle
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.device import device
from resilin.core.ops import creation
from resilin.core.tensor import Parameter, Tensor, wrap
from resilin.errors import RpcError
from resilin.rpc.channels import device_memory
from resilin.rpc.serialization.on_the_way import Outgoing, now

_WASTE_BYTES = 1 << 20  # between the elements of a view: what is more, and more than the view itself, is left out
Layout = tuple[int, tuple[int, ...]]
"""Where in its bytes an array's first element is, and its strides, in bytes."""


def _reach(array: Any, address: int) -> tuple[int, int, int]:
    """The address of the first element, and where the array's bytes begin and end."""
    start = address
    stop = start + array.itemsize
    for length, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            start += (length - 1) * stride
        else:
            stop += (length - 1) * stride
    return address, start, stop


def small_extent(array: Any, most_bytes: int) -> tuple[bytes | None, Layout | None]:
    """Return the bytes that an array reaches over, and how its elements lie in them; None where these are more than
    `most_bytes`. So an expanded one stays as small as what it was expanded from."""
    strides = array.strides
    if 0 in strides:  # quicker than by addresses
        core = array[tuple([slice(None) if stride else 0 for stride in strides])]
        if core.flags.c_contiguous and core.nbytes <= most_bytes:
            return core.tobytes(), (0, strides)
    address, start, stop = _reach(array, array.__array_interface__["data"][0])
    if stop - start > most_bytes:
        return None, None
    return ctypes.string_at(start, stop - start), (address - start, strides)


def reduce_tensor(tensor: Tensor) -> Any:
    """Return what pickle keeps of a tensor of a remote call."""
    out = now.out
    if out is None:
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    array, where, lies, memory = tensor._array, out.peer.device_for("cpu"), "cpu", device_memory.NUMPY
    if tensor._dev.type != "cpu":
        where, found = _mapped(out, tensor), device_memory.of(tensor._dev)
        if found is None:
            array = tensor._dev.backend.to_host(array)
        else:
            lies, memory = str(tensor._dev), found
    kind = 0 if type(tensor) is Tensor else 1
    name = dtypes.from_numpy(array.dtype).name
    state = getattr(tensor, "__dict__", None) or None
    requires_grad = tensor.requires_grad
    if requires_grad:
        out.requiring.append(tensor)
    if not array.size:
        return _tensor, (-1, 0, array.shape, (), name, kind, requires_grad, where), state
    owner, address = memory.place(array)
    address, start, stop = _reach(array, address)
    if stop - start > 2 * array.nbytes and stop - start - array.nbytes > _WASTE_BYTES:
        array = array.copy()
        owner, address = memory.place(array)
        address, start, stop = _reach(array, address)
    number = out.add(owner, start - start % memory.phase, stop, tensor, lies, where)
    return _tensor, (number, address, array.shape, array.strides, name, kind, requires_grad, where), state


def _mapped(out: Outgoing, tensor: Tensor) -> str:
    where = out.peer.device_for(str(tensor._dev))
    if where is None:
        raise RpcError(
            "RPC backend only supports CPU tensors by default, please move your tensors to CPU before sending them "
            f"over RPC, or call `set_device_map` on `TensorPipeRpcBackendOptions` to explicitly configure device "
            f"mapping. {tensor._dev} has no device of {out.peer.name} to go to."
        )
    return where


def _tensor(
    number: int,
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: str,
    kind: int,
    requires_grad: bool,
    where: str | None,
) -> Tensor:
    """Fill the hole of a tensor."""
    into, target = now.into, None if where is None or where == "cpu" else device(where)
    if number < 0:
        made = creation.from_numpy(np.empty(shape, dtypes.by_name(dtype).np))
        made = made if target is None else made.to(target)
    elif into is None:
        raise RpcError("tensors of a remote call can only be read where the call is")
    else:
        block, start = into.blocks[number], into.starts[number]
        if target is None:
            made = creation.from_numpy(np.ndarray(shape, dtypes.by_name(dtype).np, block, address - start, strides))
        else:
            made = _over(block, address - start, shape, dtypes.by_name(dtype).np, strides, target)
    if kind:
        made = Parameter(made, requires_grad)
    made._rg = requires_grad
    if requires_grad and into is not None:
        into.requiring.append(made)
    return made


def _over(
    block: Any, offset: int, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...], target: device
) -> Tensor:
    """The tensor that lies in a block on `target`, or in the host's memory where only its backend reaches `target`."""
    memory = device_memory.of(target)
    if memory is not None:
        return wrap(memory.shaped(block, offset, shape, dtype, strides), target)
    return creation.from_numpy(np.ndarray(shape, dtype, block, offset, strides)).to(target)
