"""What ops cannot do on the devices of a backend: the ones it does not support, and those whose results may vary.

A backend says both (`Backend.unsupported`, `Backend.nondeterministic`, op names with reasons). At its registration
each op it names gets a guard for its device type, so all other ops, and other devices, pay nothing.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from resilin.core import determinism, ops
from resilin.core.device import before_registration
from resilin.core.ops.registry import OPS, Impl, Op

_BACKWARD = "_backward"


def _limit(backend: Any) -> None:
    """Guard the ops that `backend` names. ValueError when it names one that is not there."""
    unsupported = getattr(backend, "unsupported", {})
    varying = getattr(backend, "nondeterministic", {})
    if not all(map(_declared, (*unsupported, *varying))):
        _declare_all()
    for name in (*unsupported, *varying):
        if not _declared(name):
            raise ValueError(
                f"backend {backend.type!r} names op {name!r}, which is not declared; docs/reference/ops.md lists all"
            )
    for name, why in unsupported.items():
        _guard(backend.type, name, _refusal(backend.type, name, why))
    for name, why in varying.items():
        _guard(backend.type, name, _reminder(backend.type, name, why))


def _declared(name: str) -> bool:
    return name in OPS or name.removesuffix(_BACKWARD) in OPS


def _declare_all() -> None:
    """Import every file of ops: those of convolution and the like are else loaded with `nn` or `fft`."""
    for module in pkgutil.iter_modules(ops.__path__):
        importlib.import_module(f"{ops.__name__}.{module.name}")


def _guard(device_type: str, name: str, before: Callable[[], None]) -> None:
    """Call `before` each time op `name` runs on such a device; or its gradient rule, when `name` ends in _backward."""
    op: Op = OPS[name if name in OPS else name.removesuffix(_BACKWARD)]
    impl = op.impls.get(device_type, op.generic)
    forward, vjp = impl.forward, impl.vjp
    if name in OPS:
        made = Impl(_after(before, forward), vjp, impl.residual, impl.saves, impl.wide)
    else:
        rule = None if vjp is None else _after(before, vjp)
        made = Impl(forward, rule, impl.residual, impl.saves, impl.wide)
        made.before_rule = before
    op.impls[device_type] = made


def _after(before: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        before()
        return function(*args)

    return run


def _refusal(device_type: str, name: str, why: str) -> Callable[[], None]:
    def refuse() -> None:
        raise NotImplementedError(
            f"{name} is not supported on {device_type} devices: {why}. Move its tensors with .cpu(), or override the op"
        )

    return refuse


def _reminder(device_type: str, name: str, why: str) -> Callable[[], None]:
    return lambda: determinism.check(name, device_type, why)


before_registration(_limit)
