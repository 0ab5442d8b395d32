"""`custom_op`: a function as an operator, whose inside gradients do not look into."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NoReturn

from resilin.core.autocast import casting
from resilin.core.dtype import dtype
from resilin.errors import UsageTypeError
from resilin.library import registry
from resilin.library.schema import infer_schema


class CustomOpDef:
    """An operator that `custom_op` made of a function. Called, it runs the kernel for its arguments' device."""

    def __init__(self, qualname: str, fn: Callable[..., Any], schema: str, devices: Collection[str] | None) -> None:
        self._init_fn = fn
        self._op = registry.register(qualname, schema, is_custom=True, again=True)
        for kind in devices or (registry.ANY_DEVICE,):
            self._op.kernels[kind] = fn
        self.__name__, self.__doc__, self.__module__ = qualname.partition("::")[2], fn.__doc__, fn.__module__

    @property
    def _qualname(self) -> str:
        return self._op.name()

    @property
    def _opoverload(self) -> registry.Operator:
        return self._op

    def __repr__(self) -> str:
        return f"<CustomOpDef({self._qualname})>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._op(*args, **kwargs)

    def register_kernel(self, device_types: str | Sequence[str] | None, fn: Any = None, /) -> Any:
        """Run `fn` for tensors of these types of devices, None for all; also a decorator."""
        if fn is None:
            return lambda function: self.register_kernel(device_types, function)
        for kind in [device_types] if isinstance(device_types, str | None) else device_types:
            self._op.kernels[registry.ANY_DEVICE if kind is None else registry.key_of(kind)] = fn
        return fn

    @contextlib.contextmanager
    def set_kernel_enabled(self, device_type: str, enabled: bool = True) -> Iterator[None]:
        """Use the kernel of a type of devices in a block, or not."""
        before = set(self._op.disabled)
        (self._op.disabled.discard if enabled else self._op.disabled.add)(registry.key_of(device_type))
        try:
            yield
        finally:
            self._op.disabled = before

    def register_fake(self, fn: Any, /) -> Any:
        """Keep `fn`, which makes the result's shape alone: tensors of the device "meta" are given to it."""
        self._op.kernels[registry.FAKE] = fn
        return fn

    def register_autograd(
        self, backward: Callable[..., Any], /, *, setup_context: Callable[..., Any] | None = None
    ) -> None:
        """Make gradients by `backward(ctx, *grads)`, after `setup_context(ctx, inputs, output)` has kept what it needs.

        RuntimeError for an operator that writes to its arguments.
        """
        if self._op._schema.mutated:
            raise RuntimeError(
                f"Cannot register autograd formula for non-functional operator {self}: make one that writes to none of "
                "its arguments"
            )
        self._op.backward, self._op.setup_context = backward, setup_context

    def register_vmap(self, func: Any = None, /) -> Any:
        """Run `func(info, in_dims, *args, **kwargs)` for a batch in `vmap`; also a decorator.

        It gives (output, out_dims). `info` has `batch_size` and `randomness`; `in_dims` says for each argument where
        its samples are, None for one that all share. Without it samples go one by one. NotImplementedError for tensors
        that are keyword-only.
        """
        if func is None:
            return self.register_vmap
        for parameter in self._op._schema.signature.parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY and str(parameter.annotation).startswith("Tensor"):
                raise NotImplementedError(
                    f"register_vmap with kwarg-only Tensor args. In the original definition of the op, please make "
                    f"your tensors not kwarg-only. Got: {self._op}"
                )
        self._op.vmap = func
        return func

    def register_torch_dispatch(self, torch_dispatch_class: Any, fn: Any = None, /) -> NoReturn:
        """Raise NotImplementedError: classes take calls over by `__torch_function__`."""
        raise NotImplementedError(f"{self}.register_torch_dispatch: classes take calls over by __torch_function__")

    def register_autocast(self, device_type: str, cast_inputs: Any) -> None:
        """Give the operator its floating point inputs (but float64) as `cast_inputs` where autocast is enabled.

        Inside, autocast is off. ValueError for a device_type other than "cpu" and "cuda".
        """
        if not isinstance(device_type, str):
            raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")
        if device_type not in registry.AUTOCAST:
            raise ValueError(f"Unknown device type: {device_type}: expected cpu or cuda")
        if not isinstance(cast_inputs, dtype):
            raise UsageTypeError(f"register_autocast: cast_inputs must be a dtype, got {cast_inputs!r:.80}")

        def cast(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = (casting.cast_all(given, device_type, cast_inputs) for given in (args, kwargs))
            return self._op.run(args, kwargs)

        self._op.kernels[registry.AUTOCAST[device_type]] = cast


def custom_op(
    name: str,
    fn: Callable[..., Any] | None = None,
    /,
    *,
    mutates_args: str | Collection[str],
    device_types: str | Sequence[str] | None = None,
    schema: str | None = None,
    tags: Any = None,
) -> Any:
    """Make an operator "NAMESPACE::NAME" of a function with annotations, or with a `schema`; also a decorator.

    It runs outside of the graph: `register_autograd` gives it gradients. What it returns shares no memory with what it
    was given. ValueError for parameters without annotations that a schema can be made of.
    """
    if fn is None:
        return lambda function: custom_op(
            name, function, mutates_args=mutates_args, device_types=device_types, schema=schema, tags=tags
        )
    written = schema if schema is not None else infer_schema(fn, mutates_args=mutates_args)
    return CustomOpDef(name, fn, written, [device_types] if isinstance(device_types, str) else device_types)
