"""Attaches to `Tensor` the methods and operators that ops provide. Imported once, by `resilin.core`."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from resilin._base import place_finder
from resilin.core.api.conversion import convert, dlpack, layouts, pinning, printing, tensor_types
from resilin.core.api.manipulation import (
    indexing,
    joining,
    rearranging,
    scattering,
    shaping,
    sorting,
    uniques,
    writing_at_places,
)
from resilin.core.api.mathematics import (
    arithmetic,
    elementwise,
    linear_algebra,
    products,
    reducing,
    special,
    spectral,
    statistics,
)
from resilin.core.api.mathematics.one_pass import IN_PLACE, LOOPS
from resilin.core.api.nn import activations, neural
from resilin.core.autograd import engine
from resilin.core.dtype import to_numpy
from resilin.core.kernels.loader import short_write
from resilin.core.ops import creation, random, random_distributions
from resilin.core.ops.registry import OPS, TENSOR_XP
from resilin.core.ops.shape import astype
from resilin.core.public import in_place_names, subclass
from resilin.core.state import copying, inplace, restride, sharing
from resilin.core.state.copying import copy_shared
from resilin.core.state.size import Size
from resilin.core.tensor import Parameter, Tensor, wrap


def _words(text: str) -> list[str]:
    return text.split()


_MATH = _words(
    """
    asinh acosh atanh arcsin arccos arctan arctan2 arcsinh arccosh arctanh not_equal less less_equal greater
    greater_equal logaddexp hypot clamp_min clamp_max logit xlogy trace exp expm1 exp2 log log1p log2
    log10 sqrt rsqrt reciprocal square neg negative sin cos tan sinh cosh tanh asin acos atan atan2 floor ceil trunc
    sign isnan isinf isfinite signbit eq ne lt le gt ge logical_and logical_or logical_xor logical_not maximum
    minimum remainder fmod mul multiply add sub subtract div divide true_divide floor_divide bitwise_and bitwise_or
    bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift pow abs absolute angle conj round frac clamp clip
    lerp addcmul addcdiv equal isclose allclose nan_to_num
    """
)
_PRODUCTS = _words(
    """
    matmul mm bmm mv dot vdot outer addmm baddbmm
    """
)
_REDUCE = _words(
    """
    nansum nanmean sum mean prod max min amax amin argmax argmin any all count_nonzero var std logsumexp norm cumsum
    cumprod
    """
)
_SHAPE = _words(
    """
    moveaxis swapaxes swapdims reshape view view_as reshape_as flatten unflatten
    ravel transpose permute movedim t unsqueeze squeeze expand expand_as broadcast_to repeat tile repeat_interleave
    flip roll diagonal diag tril triu clone contiguous
    """
)
_PARTS = _words(
    """
    split tensor_split chunk narrow select unbind
    """
)
_INDEX = _words(
    """
    index_fill index_copy index_put take argwhere gather take_along_dim scatter_add scatter index_select index_add
    masked_select masked_fill nonzero nonzero_static bincount unfold
    """
)
_LINEAR_ALGEBRA = _words(
    """
    det slogdet logdet inverse pinverse matrix_exp matrix_power cholesky cholesky_inverse cholesky_solve qr svd cross
    kron ger inner
    """
)
_SPECIAL = _words(
    """
    erfc erfinv sinc i0 lgamma digamma igamma igammac mvlgamma
    """
)
_NEURAL = _words(
    """
    erf softmax log_softmax relu sigmoid
    """
)
_ACTIVATIONS = _words(
    """
    prelu hardshrink
    """
)
_IN_PLACE = _words(
    """
    erfc erfinv sinc i0 lgamma digamma igamma igammac mvlgamma polygamma renorm
    clamp_min clamp_max index_fill index_copy index_put index_add addmm baddbmm cumprod erf asin acos atan log2
    log10 exp2 logit exp log sqrt rsqrt reciprocal neg sin cos tanh floor ceil trunc sign round abs add sub mul div
    floor_divide remainder pow clamp lerp addcmul addcdiv maximum minimum scatter_add scatter masked_fill relu
    sigmoid bitwise_and bitwise_or bitwise_xor logical_not nan_to_num tril triu cumsum square expm1 log1p clip fmod
    """
)
_UFUNCS: dict[str, Any] = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
_UFUNCS |= {"remainder": np.remainder, "fmod": np.fmod, "floor_divide": np.floor_divide}
_UFUNCS |= {"bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor}
_UFUNCS |= {"bitwise_left_shift": np.left_shift, "bitwise_right_shift": np.right_shift}


def _attach() -> None:
    tensor: Any = Tensor
    families = (
        (arithmetic, _MATH),
        (products, _PRODUCTS),
        (reducing, _REDUCE),
        (shaping, _SHAPE),
        (joining, _PARTS),
        (indexing, _INDEX),
        (neural, _NEURAL),
        (activations, _ACTIVATIONS),
        (linear_algebra, _LINEAR_ALGEBRA),
        (special, _SPECIAL),
        (elementwise, [name for name in elementwise.__all__ if name != "rsub"]),
        (rearranging, rearranging.METHODS),
        (scattering, scattering.METHODS),
        (statistics, statistics.METHODS),
        (layouts, layouts.METHODS),
        (pinning, pinning.METHODS),
        (sorting, sorting.__all__),
        (spectral, spectral.METHODS),
        (uniques, uniques.__all__),
    )
    for module, names in families:
        for name in names:
            setattr(tensor, name, getattr(module, name))
    tensor.polygamma = special.polygamma_of  # n comes first in the function
    for name, cast in convert.CASTS.items():
        setattr(tensor, name, cast)
    short = {**IN_PLACE, **writing_at_places.IN_PLACE}
    for name in (*_IN_PLACE, *in_place_names.METHODS, *scattering.IN_PLACE):
        fn = getattr(tensor, name)
        setattr(
            tensor, name + "_", inplace.make(fn, name + "_", _UFUNCS.get(name), short.get(name), LOOPS.get(name, ""))
        )
    for name, parameters in writing_at_places.KERNELS.items():
        setattr(tensor, name + "_", short_write(name + "_into", getattr(tensor, name + "_"), *parameters))
    tensor.to, tensor.cpu, tensor.cuda, tensor.type = convert.to, convert.cpu, convert.cuda, tensor_types.type_
    tensor.new = tensor_types.new
    tensor.type_as = convert.type_as
    tensor.copy_, tensor.fill_, tensor.zero_ = inplace.copy_, inplace.fill_, inplace.zero_
    tensor.uniform_, tensor.normal_, tensor.bernoulli_ = random.fill_uniform, random.fill_normal, random.fill_bernoulli
    tensor.bernoulli, tensor.multinomial = random.bernoulli, random.multinomial
    tensor.where = _where
    tensor.backward = backward
    tensor.T, tensor.mT, tensor.H = property(_reversed), property(_matrix_transposed), property(_hermitian)
    tensor.mH, tensor.adjoint = property(_adjoint), _adjoint
    tensor.real, tensor.imag = property(arithmetic.real, _set_real), property(arithmetic.imag, _set_imag)
    tensor.is_cpu, tensor.get_device, tensor.is_same_size = property(_is_cpu), _get_device, _is_same_size
    tensor.share_memory_ = _share_memory_
    tensor.random_, tensor.exponential_ = random.fill_integers, random.fill_exponential
    tensor.geometric_, tensor.cauchy_ = random_distributions.fill_geometric, random_distributions.fill_cauchy
    tensor.log_normal_ = random_distributions.fill_log_normal
    for name in ("zeros", "ones", "empty", "full", "tensor"):
        setattr(tensor, f"new_{name}", _new(getattr(creation, name)))
    for name, method in (*restride.METHODS.items(), *layouts.PROPERTIES.items()):
        setattr(tensor, name, method)
    tensor.resize_, tensor.resize_as_, tensor.set_ = restride.resize_, restride.resize_as_, restride.set_
    tensor.__repr__ = tensor.__str__ = printing.text
    tensor.__array_namespace__, tensor.to_device = dlpack.array_namespace, dlpack.to_device
    tensor.__dlpack__, tensor.__dlpack_device__ = dlpack.dlpack, dlpack.dlpack_device
    tensor.__format__ = _format
    tensor.__deepcopy__ = _deepcopy
    tensor.__reduce_ex__ = _reduce_ex
    parameter: Any = Parameter
    parameter.__repr__ = parameter.__str__ = _parameter_text
    _attach_operators(tensor)


def _attach_operators(tensor: Any) -> None:
    add, subtract, multiply, divide = (OPS[n].call for n in ("add", "subtract", "multiply", "divide"))
    reflected = {
        "add": add,
        "sub": subtract,
        "mul": multiply,
        "truediv": divide,
        "floordiv": arithmetic.floor_divide,
        "mod": arithmetic.remainder,
        "pow": OPS["power"].call,
        "matmul": products.matmul,
        "and": arithmetic.bitwise_and,
        "or": arithmetic.bitwise_or,
        "xor": arithmetic.bitwise_xor,
        "lshift": arithmetic.bitwise_left_shift,
        "rshift": arithmetic.bitwise_right_shift,
    }
    for name, fn in reflected.items():
        setattr(tensor, f"__{name}__", fn)
        setattr(tensor, f"__r{name}__", _swapped(fn))
    for name, fn in {"lt": arithmetic.lt, "le": arithmetic.le, "gt": arithmetic.gt, "ge": arithmetic.ge}.items():
        setattr(tensor, f"__{name}__", fn)
    tensor.__eq__, tensor.__ne__ = _comparison(arithmetic.eq), _comparison(arithmetic.ne)
    tensor.__neg__, tensor.__abs__, tensor.__invert__ = arithmetic.neg, arithmetic.abs, arithmetic.bitwise_not
    tensor.__pos__ = lambda self: self
    tensor.__getitem__, tensor.__setitem__, tensor.__delitem__ = indexing.getitem, _setitem, _delitem
    names = {"iadd": "add_", "isub": "sub_", "imul": "mul_", "itruediv": "div_", "ipow": "pow_", "iand": "bitwise_and_"}
    names |= {"ior": "bitwise_or_", "ixor": "bitwise_xor_", "ifloordiv": "floor_divide_", "imod": "remainder_"}
    names |= {"ilshift": "bitwise_left_shift_", "irshift": "bitwise_right_shift_"}
    for name, method in names.items():
        setattr(tensor, f"__{name}__", getattr(tensor, method))


def _swapped(fn: Any) -> Any:
    def swapped(self: Tensor, other: Any) -> Any:
        return fn(other, self)

    return swapped


def _comparison(fn: Any) -> Any:
    def compare(self: Tensor, other: Any) -> Any:
        if isinstance(other, Tensor | int | float | complex | np.generic | np.ndarray):
            return fn(self, other)
        return NotImplemented

    return compare


def _setitem(self: Tensor, index: Any, value: Any) -> None:
    inplace.setitem(self, indexing.kept_index(index, self, value), value)


def _delitem(self: Tensor, index: Any) -> None:
    raise TypeError("Tensor does not support deleting items: select those to keep, as in x[mask]")


def backward(
    self: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Accumulate the gradient of this tensor into the `grad` of every leaf it was computed from (or of `inputs`).

    `gradient` (of this tensor's shape) may be left out for a single element. The graph is freed unless `retain_graph`.
    """
    engine.backward((self,), (gradient,), retain_graph, create_graph, inputs)


def _where(self: Tensor, condition: Tensor, other: Any) -> Tensor:
    """This tensor where `condition` holds, else `other`."""
    return indexing.where(condition, self, other)  # type: ignore[no-any-return]


def _set_real(self: Tensor, value: Any) -> None:
    inplace.copy_(arithmetic.real(self), value)


def _set_imag(self: Tensor, value: Any) -> None:
    inplace.copy_(arithmetic.imag(self), value)


def _is_cpu(self: Tensor) -> bool:
    """Whether it lives in the host's memory."""
    return self._dev.type == "cpu"


def _get_device(self: Tensor) -> int:
    """The index of its device; -1 on the CPU."""
    return -1 if self._dev.index is None else self._dev.index


def _is_same_size(self: Tensor, other: Tensor) -> bool:
    """Whether both have one shape."""
    return bool(self._array.shape == other._array.shape)


def _reversed(self: Tensor) -> Tensor:
    """A view with all dimensions in reverse order."""
    return self.permute(tuple(range(self._array.ndim - 1, -1, -1))) if self._array.ndim != 2 else self.transpose(0, 1)


def _matrix_transposed(self: Tensor) -> Tensor:
    """A view with the last two dimensions exchanged; a number as it is. RuntimeError for vectors."""
    if not self._array.ndim:
        return self
    if self._array.ndim < 2:
        raise RuntimeError(
            f"tensor.mT is only supported on matrices or batches of matrices. Got {self.dim()}-D tensor."
        )
    return self.transpose(-2, -1)


def _adjoint(self: Tensor) -> Tensor:
    """The last two dimensions exchanged, conjugated; of a number its conjugate. RuntimeError for vectors."""
    if not self._array.ndim:
        return arithmetic.conj(self)
    if self._array.ndim < 2:
        raise RuntimeError(f"adjoint: expected a matrix or a batch of matrices, got a {self.dim()}-D tensor")
    return arithmetic.conj(self.transpose(-2, -1))


def _hermitian(self: Tensor) -> Tensor:
    """The conjugate transpose of a matrix. RuntimeError for other numbers of dimensions."""
    if self._array.ndim not in (0, 2):
        raise RuntimeError(f"tensor.H is only supported on matrices (2-D tensors), got {self.dim()}-D; use .mH")
    return _adjoint(self)


def _new(make: Any) -> Any:
    def new(self: Tensor, *args: Any, dtype: Any = None, device: Any = None, **options: Any) -> Tensor:
        made: Tensor = make(*args, dtype=dtype or self.dtype, device=device or self._dev, **options)
        return made

    new.__name__ = new.__qualname__ = f"new_{make.__name__}"
    new.__doc__ = f"`{make.__name__}` with this tensor's dtype and device unless others are given."
    return new


def _format(self: Tensor, spec: str) -> str:
    """A 0-d tensor is written as its number, so that log lines read as in PyTorch; others take no format."""
    as_number = self._array.ndim == 0 and (spec or type(self) is Tensor)
    return format(self.item(), spec) if as_number else object.__format__(self, spec)


def _parameter_text(self: Tensor) -> str:
    return f"Parameter containing:\n{printing.text(self)}"


def _deepcopy(self: Tensor, memo: dict[int, Any]) -> Tensor:
    if self._node is not None:
        raise RuntimeError("only tensors created explicitly by the user (graph leaves) support deepcopy; use .detach()")
    made = wrap(copy_shared(self._array, memo), self._dev)
    if isinstance(self, Parameter):
        made = Parameter(made, self._rg)
    elif type(self) is not Tensor:
        made = subclass.moved(made, type(self))
    if hasattr(self, "__dict__"):
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
    made._rg = self._rg
    memo[id(self)] = made
    if self._grad is not None:
        made._grad = _deepcopy(self._grad.detach(), memo)
    return made


def _share_memory_(self: Tensor) -> Tensor:
    """Move the memory, for all tensors over it, to where other processes can read and write it. Itself.

    Tensors on a GPU are left as they are. RuntimeError where the system has no files in memory.
    """
    sharing.share([self])
    return self


def _reduce_ex(self: Tensor, protocol: int) -> Any:
    """Pickled by value: a numpy array, its device and flags. Gradients and history stay behind, as in PyTorch.

    Pickles of multiprocessing may lead to the memory instead: see `shared_pickles`.
    """
    if not self._dev.xp.elements:
        parts: Any = (type(self), tuple(self._array.shape), self.dtype, str(self._dev), self._rg)
        return _rebuild_empty, parts, getattr(self, "__dict__", None) or None
    parts = (type(self), copying.elements_of(self), str(self._dev), self._rg)
    return _rebuild, parts, getattr(self, "__dict__", None) or None


def _rebuild(kind: type, array: Any, where: str, requires_grad: bool) -> Tensor:
    made = creation.from_numpy(array.array() if isinstance(array, copying.Elements) else array)  # of copy.copy
    return _as_kind(made if where == "cpu" else made.to(where), kind, requires_grad)


def _rebuild_empty(kind: type, shape: Any, dtype: Any, where: str, requires_grad: bool) -> Tensor:
    return _as_kind(creation.empty(shape, dtype=dtype, device=where), kind, requires_grad)


def _as_kind(made: Tensor, kind: type, requires_grad: bool) -> Tensor:
    if issubclass(kind, Parameter):
        return Parameter(made, requires_grad)
    made = made if kind is Tensor else subclass.moved(made, kind)
    return made.requires_grad_(requires_grad)


def _fill_namespace() -> None:
    """What rules need of `TENSOR_XP` beside the ops."""
    from_ops: Any = TENSOR_XP
    from_ops.where = indexing.where
    from_ops.concat = joining.cat
    from_ops.zeros_like, from_ops.ones_like, from_ops.full_like = (
        lambda x, shape=None: creation.zeros_like(x) if shape is None else x.new_zeros(shape),
        creation.ones_like,
        creation.full_like,
    )
    from_ops.max = lambda x, axis=None, keepdims=False: reducing.amax(x, axis, keepdims)
    from_ops.min = lambda x, axis=None, keepdims=False: reducing.amin(x, axis, keepdims)
    from_ops.arange = np.arange
    from_ops.conj = lambda x: arithmetic.conj(x) if isinstance(x, Tensor) else x.conjugate()
    from_ops.astype = lambda x, dtype: astype.call(x, to_numpy(dtype))
    from_ops.constant = lambda array, like: wrap(like._dev.xp.constant(array, like._array), like._dev)


Size.__module__ = place_finder.shown_root
_attach()
_fill_namespace()
subclass.publish()
