"""Hooks of every module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import resilin
from resilin import nn
from resilin.nn.modules import module as modules


@pytest.fixture
def add() -> Iterator[Callable[..., None]]:
    """Registers hooks that are gone after the test."""
    handles: list[Any] = []
    yield lambda register, hook, **options: handles.append(register(hook, **options))
    for handle in handles:
        handle.remove()


def test_hooks_of_all_modules_run_before_the_modules_own(add: Any) -> None:
    log: list[str] = []
    layer = nn.Linear(2, 2)
    layer.register_forward_pre_hook(lambda m, a: log.append("own before"))
    layer.register_forward_hook(lambda m, a, o: log.append("own after"))
    layer.register_full_backward_pre_hook(lambda m, go: log.append("own before backward"))
    layer.register_full_backward_hook(lambda m, gi, go: log.append("own backward"))
    add(modules.register_module_forward_pre_hook, lambda m, a: log.append("before"))
    add(modules.register_module_forward_hook, lambda m, a, k, o: log.append("after"), with_kwargs=True)
    add(modules.register_module_full_backward_pre_hook, lambda m, g: log.append("before backward"))
    add(modules.register_module_full_backward_hook, lambda m, gi, go: log.append("backward"))
    layer(resilin.ones(1, 2, requires_grad=True)).sum().backward()
    names = ("before", "after", "before backward", "backward")
    assert log == [entry for name in names for entry in (name, f"own {name}")]


def test_hooks_of_all_modules_may_replace_what_they_see(add: Any) -> None:
    add(modules.register_module_forward_pre_hook, lambda m, args: args[0] + 1)
    add(modules.register_module_forward_hook, lambda m, args, output: output * 10)
    assert nn.Identity()(resilin.ones(1)).item() == 20


def test_a_hook_of_all_modules_that_is_always_called_sees_a_forward_that_failed(add: Any) -> None:
    seen: list[Any] = []
    add(modules.register_module_forward_hook, lambda m, a, output: seen.append(output), always_call=True)
    with pytest.raises(NotImplementedError):
        nn.Module()()
    assert seen == [None]


def test_removed_hooks_of_all_modules_are_not_called_any_more() -> None:
    seen: list[Any] = []
    modules.register_module_forward_hook(lambda m, a, output: seen.append(output)).remove()
    nn.Identity()(resilin.ones(1))
    assert seen == []


def test_hooks_of_registrations_see_and_may_replace_what_modules_get(add: Any) -> None:
    seen: list[str] = []
    add(modules.register_module_parameter_registration_hook, lambda m, name, p: seen.append(name))
    add(modules.register_module_buffer_registration_hook, lambda m, name, b: b + 5)
    add(modules.register_module_module_registration_hook, lambda m, name, child: seen.append(f"module {name}"))
    net = nn.Sequential(nn.Linear(2, 2, bias=False))
    net.register_buffer("count", resilin.zeros(2))
    assert seen == ["weight", "module 0"]
    assert net.count.tolist() == [5, 5]


def test_backward_hooks_of_a_module_that_returns_a_dict_are_not_called_and_it_says_so() -> None:
    class Named(nn.Module):
        def forward(self, x: Any) -> Any:
            return {"double": x * 2}

    net, seen = Named(), []
    net.register_full_backward_hook(lambda m, gi, go: seen.append(go))
    x = resilin.ones(2, requires_grad=True)
    with pytest.warns(UserWarning, match="tuple of Tensors but received dict"):
        net(x)["double"].sum().backward()
    assert seen == []
    assert x.grad.tolist() == [2, 2]


def test_functional_call_passes_over_names_that_the_module_does_not_have() -> None:
    layer, x = nn.Linear(2, 2), resilin.ones(2)
    given = {"bias": layer.bias.detach() + 1, "nothing": x}
    assert (resilin.func.functional_call(layer, given, (x,)) - layer(x)).round().tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="nothing"):
        resilin.func.functional_call(layer, given, (x,), strict=True)
