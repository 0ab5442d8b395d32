"""`opcheck`: whether an operator keeps what its schema says and has what PyTorch asks of operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from resilin.core import trees
from resilin.core.autograd.grad import grad
from resilin.core.tensor import Tensor
from resilin.library import registry

DEFAULT_TESTS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
# rtol and atol by dtype, as of torch.testing.assert_close; other dtypes are compared exactly
_TOLERANCES = {
    "bfloat16": (1.6e-2, 1e-5),
    "float16": (1e-3, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
}
Call = tuple[tuple[Any, ...], dict[str, Any]]


class OpCheckError(Exception):
    """A test of `opcheck` failed: which, and with what."""


def check(
    op: registry.Operator, call: Call, tests: str | Sequence[str], tolerances: Any, raise_exception: bool
) -> dict[str, Any]:
    """Run the tests named; their outcome by name. OpCheckError, or an entry, for one that fails."""
    names = tuple(_TESTS) if tests == "ALL" else (tests,) if isinstance(tests, str) else tests
    if not isinstance(names, tuple | list) or not set(names) <= _TESTS.keys():
        raise ValueError(
            f"opcheck(op, ..., test_utils={tests}), expected test_utils to be subset of {tuple(_TESTS)} but it was not"
        )
    found: dict[str, Any] = {}
    for name in names:
        try:
            _TESTS[name](op, call, tolerances)
            found[name] = "SUCCESS"
        except Exception as error:  # of the operator's own code, whatever it is
            if raise_exception:
                raise OpCheckError(f"opcheck(op, ...): {name} failed with {error} (see above)") from error
            found[name] = error
    return found


def _schema(op: registry.Operator, call: Call, tolerances: Any) -> None:
    """What is written to, and what shares memory, must be in the schema."""
    args, kwargs = _copies(call)
    bound = op._schema.signature.bind(*args, **kwargs)
    before = {name: [x.detach().clone() for x in _tensors(value)] for name, value in bound.arguments.items()}
    result = op(*args, **kwargs)
    results = list(_tensors(result))
    for name, value in bound.arguments.items():
        for x, old in zip(_tensors(value), before[name], strict=True):
            is_mutable = name in op._schema.mutated
            if any(_overlap(x, y) for y in results) and not op._schema.may_alias(name):
                raise RuntimeError(f"Argument {name} is not defined to alias output but was aliasing")
            if not is_mutable and not (x.shape == old.shape and x.allclose(old, rtol=0, atol=0, equal_nan=True)):
                raise RuntimeError(f"Argument {name} is not defined as mutable but was mutated")
    for i, x in enumerate(results):
        for j in range(i + 1, len(results)):
            if _overlap(x, results[j]):
                raise RuntimeError(f"Outputs {i} and {j} alias unexpectedly")


def _autograd_registration(op: registry.Operator, call: Call, tolerances: Any) -> None:
    """An operator whose kernel records a graph should have its formula where gradients are looked for."""
    args, kwargs = _copies(call)
    given = list(_tensors((args, kwargs)))
    has_formula = op.backward is not None or op._is_custom
    if has_formula or {registry.AUTOGRAD, registry.COMPOSITE} & op.kernels.keys():
        return
    if any(x.requires_grad for x in given):
        made = _tensors(op(*args, **kwargs))
        if any(x.requires_grad and not any(x is y for y in given) for x in made):
            raise AssertionError(
                f"{op.name()}: at least one output of this operator has requires_grad=True but the operator does not "
                "have an autograd kernel defined at an autograd key (e.g. DispatchKey::Autograd). Register its formula "
                "by register_autograd, or the kernel as CompositeImplicitAutograd if it consists of regular operations"
            )


def _fake(op: registry.Operator, call: Call, tolerances: Any) -> None:
    """The result on the device "meta" must have the shapes and dtypes of the real one."""
    args, kwargs = _copies(call)
    _compare_meta(op(*args, **kwargs), _on_meta(op, call)(), "the result")


def _dispatch(op: registry.Operator, call: Call, tolerances: Any) -> None:
    """Results and gradients must be the same each time, and have the same shapes on the device "meta"."""
    first, second = (_with_gradients(op, _copies(call)) for _ in range(2))
    for what, one, other in zip(("result", "gradients"), first, second, strict=True):
        for x, y in zip(_tensors(one), _tensors(other), strict=True):
            rtol, atol = tolerances or _TOLERANCES.get(x.dtype.name, (0, 0))
            if not (x.equal(y) or x.allclose(y, rtol=rtol, atol=atol, equal_nan=True)):
                raise AssertionError(f"{op.name()}: the {what} of two equal calls differ")
    made, gradients = _on_meta(op, call, lambda args, kwargs: _with_gradients(op, (args, kwargs)))()
    _compare_meta(first[0], made, "the result")
    _compare_meta(first[1], gradients, "the gradients")


_TESTS: dict[str, Callable[[registry.Operator, Call, Any], None]] = {
    "test_schema": _schema,
    "test_autograd_registration": _autograd_registration,
    "test_faketensor": _fake,
    "test_aot_dispatch_static": _dispatch,
    "test_aot_dispatch_dynamic": _dispatch,
}


def _tensors(value: Any) -> Iterator[Tensor]:
    return (leaf for leaf in trees.flatten(value)[0] if isinstance(leaf, Tensor))


def _copies(call: Call) -> Call:
    """The arguments, with tensors of their own."""

    def copied(leaf: Any) -> Any:
        return leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf

    made: Call = trees.transform(copied, call)
    return made


def _overlap(x: Tensor, y: Tensor) -> bool:
    both = registry.has_memory(x) and registry.has_memory(y)
    return both and x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def _with_gradients(op: registry.Operator, call: Call) -> tuple[Any, Any]:
    """The result, and the gradients of the sum of its parts that have some, if any."""
    args, kwargs = call
    result = op(*args, **kwargs)
    wanted = [x for x in _tensors((args, kwargs)) if x.requires_grad]
    ends = [x for x in _tensors(result) if x.requires_grad]
    if not (wanted and ends and (op.backward or not op._is_custom)):
        return result, []
    total = sum((x.sum() for x in ends[1:]), ends[0].sum())
    return result, [x for x in grad(total, wanted, allow_unused=True) if x is not None]


def _on_meta(op: registry.Operator, call: Call, run: Callable[..., Any] | None = None) -> Callable[[], Any]:
    """What runs the operator, or `run`, on tensors without elements. RuntimeError if it has no kernel for them."""
    if not {registry.FAKE, registry.COMPOSITE} & op.kernels.keys():
        raise RuntimeError(
            f"There was no fake impl registered for {op.name()}. This is necessary for torch.compile/export/fx tracing "
            "to work. Please use `register_fake` to add a fake impl."
        )

    def moved(leaf: Any) -> Any:
        return leaf.detach().to("meta").requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf

    args, kwargs = trees.transform(moved, call)
    return lambda: run(args, kwargs) if run else op(*args, **kwargs)


def _compare_meta(real: Any, fake: Any, what: str) -> None:
    """AssertionError where shapes or dtypes differ. Strides may: copies lie in C order on any device."""
    ones, others = list(_tensors(real)), list(_tensors(fake))
    if len(ones) != len(others):
        raise AssertionError(f"{what}: {len(ones)} tensors, by the fake impl {len(others)}")
    for x, y in zip(ones, others, strict=True):
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            raise AssertionError(
                f"{what}: {x.dtype} of shape {tuple(x.shape)}, by the fake impl {y.dtype} of shape {tuple(y.shape)}"
            )
