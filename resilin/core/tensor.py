"""`Tensor`: one backend array on one device, with its place in the autograd graph.

The class holds state and what needs no op; `public/methods.py` attaches the methods that ops provide, so that this file
stays below every op.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core import nested_data
from resilin.core.autograd.grad_mode import checked_flag, mode
from resilin.core.device import CPU, device
from resilin.core.kernels.common import address_of
from resilin.core.kernels.loader import native
from resilin.core.public import dispatch
from resilin.core.state.hooks import RETAIN, Hooks, RemovableHandle, add_hook
from resilin.core.state.memory_format import lies_in
from resilin.core.state.size import Size, check_dim, strides_of
from resilin.core.state.versions import InferenceCount, View, count_of, share_version, share_writes
from resilin.core.state.write_log import before_move
from resilin.errors import NoElements

if TYPE_CHECKING:
    from resilin.core.ops.lazy_gradients import Taker
    from resilin.core.public.operator_types import Operators
else:
    Operators = object

Array = Any  # the backend's array; numpy.ndarray on cpu
_new = object.__new__
_T = TypeVar("_T")


class Tensor(Operators):
    """An n-dimensional array that remembers how it was computed. PyTorch's attributes and methods.

    `Tensor(data)` copies `data` into a float32 tensor; `resilin.tensor` infers the dtype and is what to use.
    """

    __slots__ = (
        "__weakref__",
        "_array",
        "_dev",
        "_grad",
        "_grad_slot",
        "_hooks",
        "_node",
        "_rg",
        "_vc",
        "_view",
    )
    _array: Array
    _dev: device
    _rg: bool  # whether it requires grad
    _node: Any  # the tape's node that made it; None for a leaf
    # [in-place writes as autograd counts them, shared by views; then, once somebody holds the memory under another
    # count (`data`, Parameter(x)), a list shared with those: [all writes of the memory]]; None means no write
    _vc: list[Any] | None
    _view: View[Tensor] | None
    _grad: Tensor | None
    _hooks: Hooks | None
    _grad_slot: Array | Taker | None
    __hash__ = object.__hash__
    __array_priority__ = 1000

    def __new__(cls, *data: Any, **ignored: Any) -> Any:
        made = _new(cls)
        if cls.__init__ is Tensor.__init__ or _makes_a_tensor(data):
            _init(made, nested_data.contents_of(data, Tensor), CPU)
        return made  # else a subclass's __init__ takes more, and fills it by super().__init__(data)

    def __init__(self, *data: Any, **ignored: Any) -> None:
        cls = type(self)
        if data and cls.__init__ is not Tensor.__init__ and cls.__new__ is Tensor.__new__:
            _init(self, nested_data.contents_of(data, Tensor), CPU)

    @classmethod
    def __tensor_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls of public functions with an instance of a subclass come here; see `resilin.overrides`.

        This one runs `func` as it is and makes the tensors of its result instances of the subclass.
        """
        return dispatch.default(cls, func, types, args, kwargs)

    __torch_function__ = __tensor_function__

    @staticmethod
    def _wrap(array: Array, requires_grad: bool = False) -> Tensor:
        """A leaf over `array` itself, on the CPU: no copy."""
        made = wrap(array, CPU)
        made._rg = requires_grad
        return made

    # What it is

    @property
    def shape(self) -> Size:
        """Lengths of the dimensions."""
        return Size(self._array.shape)

    @property
    def dtype(self) -> dtypes.dtype:
        """The elements' data type."""
        return dtypes.from_numpy(self._array.dtype)

    @property
    def device(self) -> device:
        """The device that holds the elements."""
        return self._dev

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return int(self._array.ndim)

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return int(self._array.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return int(self._array.nbytes)

    @property
    def is_cuda(self) -> bool:
        """Whether it lives on a CUDA device."""
        return self._dev.type == "cuda"

    @property
    def is_meta(self) -> bool:
        """Whether it is on the meta device: a shape and a dtype, without elements."""
        return self._dev.type == "meta"

    def size(self, dim: int | None = None) -> Any:
        """`shape`, or the length of dimension `dim`."""
        return self.shape if dim is None else self._array.shape[check_dim(dim, self._array.ndim)]

    def dim(self) -> int:
        """Number of dimensions."""
        return int(self._array.ndim)

    def numel(self) -> int:
        """Number of elements."""
        return int(self._array.size)

    nelement = numel
    ndimension = dim

    def element_size(self) -> int:
        """Bytes per element."""
        return int(self._array.dtype.itemsize)

    def data_ptr(self) -> int:
        """Address of the first element."""
        return address_of(self._array)

    def stride(self, dim: int | None = None) -> Any:
        """Steps in elements to the next index, per dimension or of dimension `dim`."""
        strides = strides_of(self._array)
        return strides if dim is None else strides[check_dim(dim, len(strides))]

    def is_contiguous(self, memory_format: Any = None) -> bool:
        """Whether the elements lie in C order without gaps, or in the order of `memory_format`."""
        return lies_in(self._array, memory_format)

    def is_floating_point(self) -> bool:
        """Whether the dtype is a floating point one."""
        return self._array.dtype.kind in "fV"

    def is_complex(self) -> bool:
        """Whether the dtype is a complex one."""
        return bool(self._array.dtype.kind == "c")

    def __len__(self) -> int:
        if self._array.ndim == 0:
            raise TypeError("len() of a 0-d tensor")
        return int(self._array.shape[0])

    def __iter__(self) -> Iterator[Tensor]:
        if self._array.ndim == 0:
            raise TypeError("iteration over a 0-d tensor")
        return (self[i] for i in range(self._array.shape[0]))

    # Its place in the graph

    @property
    def requires_grad(self) -> bool:
        """Whether operations on it are recorded for backward."""
        view = self._view
        return self._rg or (view is not None and view.base._rg and view.outdated)

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        try:
            self.requires_grad_(value)
        except TypeError:
            raise RuntimeError(f"requires_grad must be a bool, got {type(value).__name__}") from None

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Set `requires_grad` of a leaf. RuntimeError for integers and, when switching off, for a non-leaf."""
        requires_grad = checked_flag("requires_grad_", "requires_grad", requires_grad)
        if requires_grad and self._array.dtype.kind not in "fVc":
            raise RuntimeError(
                f"only floating point and complex tensors can require gradients; this one is {self.dtype}"
            )
        if requires_grad and not mode.inference and self.is_inference():
            raise RuntimeError("Setting requires_grad=True on inference tensor outside inference_mode is not allowed")
        if not requires_grad and self._node is not None:
            raise RuntimeError(
                "you can only change requires_grad flags of leaf variables; use .detach() for a computed tensor"
            )
        self._rg = requires_grad
        return self

    def is_inference(self) -> bool:
        """Whether its memory was made in `inference_mode`: backward cannot use it, and only that mode may change it."""
        return type(self._vc) is InferenceCount

    @property
    def grad_fn(self) -> Any:
        """The tape's node that computed it, or None for a leaf."""
        return self._node

    @property
    def output_nr(self) -> int:
        """Which output of its `grad_fn` it is; 0 for a leaf."""
        return getattr(self._node, "index", 0)

    @property
    def is_leaf(self) -> bool:
        """Whether it was not computed by a recorded operation."""
        return self._node is None

    @property
    def grad(self) -> Tensor | None:
        """The gradient accumulated by backward; None before."""
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            if not isinstance(value, Tensor):
                raise TypeError(f"grad must be a Tensor or None, got {type(value).__name__}")
            if value._array.shape != self._array.shape:
                raise RuntimeError(f"grad has shape {tuple(value.shape)}, the tensor has {tuple(self.shape)}")
            if value._array.dtype != self._array.dtype:
                raise RuntimeError(f"grad has dtype {value.dtype}, the tensor has {self.dtype}: they must be equal")
            if value._dev is not self._dev:
                raise RuntimeError(f"grad is on {value._dev}, the tensor is on {self._dev}")
            if value is self:
                raise RuntimeError("can't assign Variable as its own grad")
        self._grad = value

    @grad.deleter
    def grad(self) -> None:
        self._grad = None

    @property
    def _version(self) -> int:
        if self.is_inference():
            raise RuntimeError("Inference tensors do not track version counter.")
        return count_of(self)

    @property
    def _writes(self) -> int:
        """Grows with every in-place write that the library knows of, also one through `data`; never goes back.

        Unlike `_version`, which PyTorch's rules for backward leave alone there. Writes of the bare array (`.numpy()`)
        are known to nobody.
        """
        vc = self._vc
        return 0 if vc is None else vc[0] if len(vc) == 1 else vc[1][0]

    def _bump(self) -> None:
        """Say that the elements were written in place (raises the version shared with all views)."""
        vc = self._vc
        if vc is None:
            self._vc = [1]
            return
        vc[0] += 1
        if len(vc) > 1:
            vc[1][0] += 1

    @property
    def data(self) -> Tensor:
        """The same memory outside the graph; unlike `detach()`, writes to it are not noticed by backward."""
        made = wrap(self._array, self._dev)
        writes = share_writes(self)
        made._vc = InferenceCount((0, writes)) if self.is_inference() else [0, writes]
        return made

    @data.setter
    def data(self, value: Tensor) -> None:
        if value._array is not self._array:
            before_move(self)
            writes, count = share_writes(value), self._writes
            writes[0] = max(writes[0], count) + 1
            share_version(self)[1:] = [writes]
        self._array, self._dev = value._array, value._dev

    def detach(self) -> Tensor:
        """The same memory outside the graph, sharing the version counter."""
        made = wrap(self._array, self._dev)
        made._vc = share_version(self)
        return made

    def detach_(self) -> Tensor:
        """Take this tensor out of the graph, in place."""
        if self._view is not None:
            raise RuntimeError("a view cannot be detached in place; use .detach()")
        self._node, self._rg = None, False
        return self

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
        """Call `hook(grad)` when the gradient of this tensor is computed; what it returns (unless None) replaces it."""
        if not self.requires_grad:
            raise RuntimeError("cannot register a hook on a tensor that does not require gradients")
        if self._node is not None:
            return add_hook(self._node.pre_hooks(), hook)
        return add_hook(self._own_hooks().pre, hook)

    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> RemovableHandle:
        """Call `hook(tensor)` right after a backward's whole gradient was accumulated into `grad`. Leaves only."""
        if self._node is not None:
            raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
        if not self._rg:
            raise RuntimeError("cannot register a hook on a tensor that does not require gradients")
        return add_hook(self._own_hooks().post, hook)

    def _own_hooks(self) -> Hooks:
        if self._hooks is None:
            self._hooks = Hooks()
        return self._hooks

    def retain_grad(self) -> None:
        """Keep the gradient of this non-leaf tensor in `grad`, too, as it is after all hooks."""
        if not self.requires_grad:
            raise RuntimeError("cannot retain the gradient of a tensor that does not require gradients")
        if self._node is None or RETAIN in self._node.pre_hooks():
            return
        weak = weakref.ref(self)

        def keep(grad: Tensor) -> None:
            alive = weak()
            if alive is not None:
                alive._grad = grad.detach() if alive._grad is None else alive._grad + grad

        self._node.pre_hooks()[RETAIN] = keep

    def _move(self, node: Any) -> None:
        """Come from `node` from now on; a retained gradient is that of the new value."""
        before = self._node
        if before is not None and before._pre and RETAIN in before._pre and node is not None:
            node.pre_hooks()[RETAIN] = before._pre.pop(RETAIN)
        self._node = node

    # Out of the library

    def numpy(self, *, force: bool = False) -> np.ndarray[Any, Any]:
        """The numpy array itself (shared memory). RuntimeError off the CPU or in the graph, unless `force`."""
        if self._rg and not force:
            raise RuntimeError("this tensor requires grad: call .detach().numpy()")
        if not self._dev.xp.elements:
            raise TypeError("can't convert meta device type tensor to numpy: it has no elements")
        if self._dev is not CPU and not force:
            raise TypeError(f"this tensor is on {self._dev}: call .cpu() first")
        array: np.ndarray[Any, Any] = self._dev.backend.to_host(self._array)
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"__array__: a tensor of {self.dtype} cannot be an array of {dtype} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Tensor:
        """What numpy's functions make of tensors is a tensor, as in PyTorch."""
        return wrap(np.asarray(array), CPU)

    def item(self) -> Any:
        """The only element as a Python number. RuntimeError when there is not exactly one."""
        if self._array.size != 1:
            raise RuntimeError(f"a tensor with {self._array.size} elements cannot be converted to a number")
        if not self._dev.xp.elements:
            raise NoElements("Tensor.item() cannot be called on meta tensors: they have no elements")
        value = self._dev.backend.to_host(self._array).reshape(()).item()
        return float(value) if self._array.dtype.kind == "V" else value

    def tolist(self) -> Any:
        """Nested lists of Python numbers."""
        return self._dev.backend.to_host(self._array).tolist()

    def __bool__(self) -> bool:
        if self._array.size != 1:
            raise RuntimeError(f"the truth value of a tensor with {self._array.size} elements is ambiguous")
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        if self._array.size != 1 or self._array.dtype.kind not in "iub":
            raise TypeError("only integer tensors with one element can be converted to an index")
        return int(self.item())

    def __contains__(self, element: Any) -> bool:
        if not isinstance(element, Tensor | int | float | complex | np.generic | np.ndarray):
            raise TypeError(f"in: expected a number or a Tensor, got {type(element).__name__}")
        return bool((self == element).any().item())


class Parameter(Tensor):
    """A leaf that a module registers as trainable. Shares memory with `data`."""

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True) -> Parameter:
        if data is not None and not isinstance(data, Tensor):
            raise TypeError(f"Parameter: expected a Tensor, got {type(data).__name__}; make one by tensor(...)")
        made = _new(cls)
        source = np.zeros(0, dtypes.default_np()) if data is None else data._array
        _init(made, source, CPU if data is None else data._dev)
        if data is not None:
            made._vc = [0, share_writes(data)]
        if requires_grad:
            made.requires_grad_()
        return made

    def __init__(self, data: Tensor | None = None, requires_grad: bool = True) -> None:
        pass  # done in __new__, so that copies and unpickling need no arguments

    __tensor_function__ = __torch_function__ = dispatch.disabled  # what is computed of it is a Tensor

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"


def _makes_a_tensor(data: tuple[Any, ...]) -> bool:
    return len(data) == 1 or all(isinstance(length, int) for length in data)


def _init(made: Tensor, array: Array, dev: device) -> None:
    made._array = array
    made._dev = dev
    made._rg = False
    made._node = None
    made._vc = None
    made._view = None
    made._grad = None
    made._hooks = None
    made._grad_slot = None


def wrap_in_python(array: Array, dev: device = CPU) -> Tensor:
    """A tensor over `array` itself, outside the graph."""
    made = _new(Tensor)
    made._array = array
    made._dev = dev
    made._rg = False
    made._node = None
    made._vc = InferenceCount((0,)) if mode.inference else None
    made._view = None
    made._grad = None
    made._hooks = None
    made._grad_slot = None
    return made


wrap = wrap_in_python if native is None else functools.update_wrapper(native.wrap_call(wrap_in_python), wrap_in_python)
