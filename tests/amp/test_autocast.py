"""Regions of autocast: where it is enabled, how regions nest, the kept casts, what is refused, and PyTorch's names."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from typing import Any, NamedTuple

import pytest

import resilin as rs
import resilin.nn.functional as F
from resilin import nn
from resilin.amp import autocast_mode
from resilin.core.autocast import state
from resilin.core.autocast.state import here


def product() -> rs.Tensor:
    return rs.ones(2, 3) @ rs.ones(3, 2)


def test_products_are_in_the_lower_precision_inside_only() -> None:
    assert product().dtype is rs.float32
    with rs.autocast("cpu"):
        assert product().dtype is rs.bfloat16
    with rs.autocast("cpu", rs.float16):
        assert product().dtype is rs.float16
    assert product().dtype is rs.float32


def test_gradients_of_float32_parameters_are_float32() -> None:
    layer = nn.Linear(3, 4)
    x = rs.randn(2, 3, requires_grad=True)
    with rs.autocast("cpu"):
        y = layer(x)
    y.float().square().sum().backward()
    assert (x.grad.dtype, layer.weight.grad.dtype, layer.bias.grad.dtype) == (rs.float32,) * 3
    exact = rs.autograd.grad(layer(x).square().sum(), [x, layer.weight])
    assert rs.allclose(x.grad, exact[0], rtol=0.05, atol=0.05)
    assert rs.allclose(layer.weight.grad, exact[1], rtol=0.05, atol=0.05)


def test_regions_nest_and_give_back_what_was_before() -> None:
    with rs.autocast("cpu", dtype=rs.float16):
        with rs.autocast("cpu", enabled=False):
            assert not rs.is_autocast_enabled("cpu")
            assert product().dtype is rs.float32
            with rs.autocast("cpu", dtype=rs.bfloat16, cache_enabled=False):
                assert product().dtype is rs.bfloat16
                assert not rs.is_autocast_cache_enabled()
        assert rs.is_autocast_enabled("cpu")
        assert rs.is_autocast_cache_enabled()
        assert product().dtype is rs.float16
    assert not rs.is_autocast_enabled("cpu")
    assert rs.get_autocast_dtype("cpu") is rs.bfloat16


def test_an_error_inside_ends_the_region() -> None:
    with pytest.raises(ZeroDivisionError), rs.autocast("cpu"):
        1 / 0  # noqa: B018 - for its error
    assert not rs.is_autocast_enabled("cpu")
    assert here.nesting == 0
    assert state.threads == 0


def test_an_error_of_a_listed_function_leaves_autocast_enabled() -> None:
    with rs.autocast("cpu"):
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            rs.ones(2, 3) @ rs.ones(2, 3)
        with pytest.raises(TypeError):
            rs.ones(2, 3) @ "text"
        assert rs.is_autocast_enabled("cpu")


def test_a_decorated_function_runs_inside_also_when_it_calls_itself() -> None:
    @rs.autocast("cpu")
    def deep(n: int) -> list[Any]:
        """Doc."""
        return [product().dtype, *(deep(n - 1) if n else ())]

    assert deep(2) == [rs.bfloat16] * 3
    assert deep.__name__ == "deep"
    assert deep.__doc__ == "Doc."
    assert not rs.is_autocast_enabled("cpu")
    with pytest.raises(TypeError, match="requires a callable, but got Tensor"):
        rs.autocast("cpu")(rs.ones(1))  # type: ignore[type-var]


def test_the_state_is_of_the_thread() -> None:
    seen: list[Any] = []
    with rs.autocast("cpu"):
        thread = threading.Thread(target=lambda: seen.extend((rs.is_autocast_enabled("cpu"), product().dtype)))
        thread.start()
        thread.join()
        assert product().dtype is rs.bfloat16
    assert seen == [False, rs.float32]


def test_one_object_may_be_entered_by_two_threads_at_once() -> None:
    region, barrier, seen = rs.autocast("cpu"), threading.Barrier(2, timeout=10), []

    def work() -> None:
        with region:
            barrier.wait()
            seen.append(product().dtype)
        barrier.wait()
        seen.append(product().dtype)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [rs.bfloat16] * 2 + [rs.float32] * 2


def test_functions_set_and_read_the_state() -> None:
    rs.set_autocast_enabled("cpu", True)
    rs.set_autocast_dtype("cpu", rs.float16)
    try:
        assert rs.is_autocast_enabled("cpu")
        assert not rs.is_autocast_enabled("cuda")
        assert not rs.is_autocast_enabled()
        assert product().dtype is rs.float16
    finally:
        rs.set_autocast_enabled("cpu", False)
        rs.set_autocast_dtype("cpu", rs.bfloat16)
    assert rs.get_autocast_dtype("cuda") is rs.float16
    assert [rs.autocast_increment_nesting(), rs.autocast_increment_nesting()] == [1, 2]
    assert [rs.autocast_decrement_nesting(), rs.autocast_decrement_nesting()] == [1, 0]


def test_the_older_functions_say_what_replaces_them() -> None:
    for old in ("is_autocast_cpu_enabled", "get_autocast_cpu_dtype", "get_autocast_gpu_dtype"):
        with pytest.warns(DeprecationWarning, match=f"torch.{old}"):
            getattr(rs, old)()
    with pytest.warns(DeprecationWarning, match="set_autocast_enabled"):
        rs.set_autocast_cpu_enabled(False)
    with pytest.warns(DeprecationWarning, match="set_autocast_dtype"):
        rs.set_autocast_cpu_dtype(rs.bfloat16)


def test_pytorchs_places_lead_to_one_class() -> None:
    import resilin.amp.autocast_mode as mode
    from resilin.cpu.amp import autocast as on_cpu
    from resilin.cuda.amp import autocast as on_cuda

    assert rs.autocast is rs.amp.autocast is mode.autocast
    assert issubclass(on_cpu, rs.autocast)
    assert issubclass(on_cuda, rs.autocast)
    with pytest.warns(FutureWarning, match=r"torch.amp.autocast\('cpu', args...\)"), on_cpu():
        assert product().dtype is rs.bfloat16
    with pytest.warns(FutureWarning, match=r"torch.amp.autocast\('cuda', args...\)"):
        on_cuda(enabled=False)
    assert rs.amp.is_autocast_available("cpu")
    assert rs.amp.is_autocast_available("cuda")
    assert not rs.amp.is_autocast_available("mps")


# ---------------------------------------------------------------------------------------------------- what is refused


def test_another_dtype_gives_a_warning_and_no_autocast() -> None:
    text = (
        "In CPU autocast, but the target dtype is not supported. Disabling autocast.\n"
        "CPU Autocast only supports dtypes of resilin.bfloat16, resilin.float16 currently."
    )
    with pytest.warns(UserWarning, match="In CPU autocast") as caught:
        region = rs.autocast("cpu", dtype=rs.float32)
    assert [str(each.message) for each in caught] == [text]
    assert caught[0].filename == __file__
    with region:
        assert product().dtype is rs.float32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rs.autocast("cpu", dtype=rs.float32, enabled=False)


@pytest.mark.skipif(rs.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device_gives_a_warning_and_no_autocast() -> None:
    with pytest.warns(UserWarning, match="CUDA is not available or torch_xla is imported. Disabling autocast."):
        region = rs.autocast("cuda")
    with region:
        assert not rs.is_autocast_enabled("cuda")
        assert product().dtype is rs.float32


def test_arguments_without_a_meaning_are_refused() -> None:
    with pytest.raises(ValueError, match="Expected `device_type` of type `str`, got: `<class 'resilin"):
        rs.autocast(rs.device("cpu"))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="User specified an unsupported autocast device_type 'mps'"):
        rs.autocast("mps")
    with pytest.raises(TypeError, match="dtype must be a dtype, got 'bfloat16'"):
        rs.autocast("cpu", dtype="bfloat16")
    with pytest.raises(TypeError, match="enabled must be True or False"):
        rs.autocast("cpu", enabled="no")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="unknown device type for autocast, 'mps'"):
        rs.is_autocast_enabled("mps")
    with pytest.raises(TypeError, match="device_type must be a str"):
        rs.get_autocast_dtype(1)
    with pytest.raises(TypeError, match="dtype must be a dtype, got str"):
        rs.set_autocast_dtype("cpu", "bfloat16")
    with pytest.raises(ValueError, match="Expected `device_type` of type `str`"):
        rs.amp.custom_fwd(device_type=0)


class Pair(NamedTuple):
    first: Any
    second: Any


def test_the_parts_of_a_named_tuple_are_cast() -> None:
    with rs.autocast("cpu"):
        assert rs.linalg.multi_dot(Pair(rs.ones(2, 3), rs.ones(3, 2).bfloat16())).dtype is rs.bfloat16


def test_half_types_that_are_not_the_regions_do_not_join() -> None:
    with rs.autocast("cpu"), pytest.raises(RuntimeError, match="Unexpected floating ScalarType"):
        rs.cat([rs.ones(2).half(), rs.ones(2).bfloat16()])


# ----------------------------------------------------------------------------------------------------- kept casts


def kept() -> int:
    return len(here.cache)


def test_the_cast_of_a_weight_is_made_once_and_kept_to_the_end_of_the_outermost_region() -> None:
    weight, x = nn.Parameter(rs.ones(3, 3)), rs.ones(2, 3)
    with rs.autocast("cpu"):
        first = F.linear(x, weight)
        with rs.autocast("cpu"):
            second = F.linear(x, weight)
        assert kept() == 1
        (held,) = here.cache.values()
        cast, held = weakref.ref(held.cast), None
    assert kept() == 0
    first.sum().backward()
    second.sum().backward()
    del first, second
    gc.collect()
    assert cast() is None
    assert rs.equal(weight.grad, rs.full((3, 3), 4.0))


def test_activations_views_and_tensors_without_gradients_are_not_kept() -> None:
    base = nn.Parameter(rs.ones(3, 3))
    with rs.autocast("cpu"):
        rs.ones(3, 3) @ rs.ones(3, 3)
        (base * 2) @ rs.ones(3, 3)
        base.detach() @ rs.ones(3, 3)
        base[:2] @ rs.ones(3, 3)
        assert kept() == 0
        with rs.autocast("cpu", cache_enabled=False):
            base @ rs.ones(3, 3)
        assert kept() == 0
        base @ rs.ones(3, 3)
        assert kept() == 1
        rs.clear_autocast_cache()
        assert kept() == 0


def test_a_cast_made_in_no_grad_does_not_take_gradients_away() -> None:
    layer = nn.Linear(3, 3)
    with rs.autocast("cpu"):
        with rs.no_grad():
            layer(rs.ones(2, 3))
        loss = layer(rs.ones(2, 3)).sum()
    loss.backward()
    assert layer.weight.grad is not None


def test_a_weight_that_was_written_is_cast_again() -> None:
    layer = nn.Linear(3, 3, bias=False)
    optimizer = rs.optim.SGD(layer.parameters(), lr=1.0)
    with rs.autocast("cpu"):
        before = layer(rs.ones(1, 3))
        before.sum().backward()
        optimizer.step()
        after = layer(rs.ones(1, 3))
        assert rs.allclose(after.float(), before.float() - 3, atol=0.1)
        layer.weight.data = rs.zeros(3, 3)
        assert not layer(rs.ones(1, 3)).any()


def test_a_thread_keeps_casts_of_its_own() -> None:
    layer = nn.Linear(3, 3)
    seen: list[int] = []

    def other() -> None:
        with rs.autocast("cpu"):
            seen.append(kept())
            layer(rs.ones(1, 3))
            seen.append(kept())

    with rs.autocast("cpu"):
        layer(rs.ones(1, 3))
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert kept() == 2
    assert seen == [0, 2]


def test_nothing_is_kept_outside_of_regions() -> None:
    layer = nn.Linear(3, 3)
    rs.set_autocast_enabled("cpu", True)
    try:
        assert layer(rs.ones(1, 3)).dtype is rs.bfloat16
        assert kept() == 0
    finally:
        rs.set_autocast_enabled("cpu", False)


# ------------------------------------------------------------------------------------------------ what it goes with


def test_a_class_that_takes_calls_over_is_asked_before_the_casts() -> None:
    dtypes: list[Any] = []

    class Seen(rs.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            dtypes.extend([each.dtype for each in args if isinstance(each, Seen)] if func is rs.matmul else [])
            return super().__torch_function__(func, types, args, kwargs)

    x = rs.ones(2, 2).as_subclass(Seen)
    with rs.autocast("cpu"):
        made = rs.matmul(x, x)
    assert (dtypes, made.dtype, type(made)) == ([rs.float32] * 2, rs.bfloat16, Seen)


def test_a_mode_that_takes_calls_over_sees_float32_and_gets_the_lower_precision() -> None:
    seen = []

    class Mode(rs.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            if getattr(func, "__name__", "") == "linear":
                seen.append((args[0].dtype, made.dtype))
            return made

    with rs.autocast("cpu"), Mode():
        F.linear(rs.ones(2, 3), rs.ones(2, 3))
    assert seen == [(rs.float32, rs.bfloat16)]


def test_compiled_and_scripted_modules_are_cast_as_they_are() -> None:
    layer = nn.Linear(3, 2)
    with rs.autocast("cpu"):
        plain = layer(rs.ones(1, 3))
        for made in (rs.compile(layer), rs.jit.script(layer)):
            assert rs.equal(made(rs.ones(1, 3)), plain)
            assert plain.dtype is rs.bfloat16


def test_vmap_and_grad_look_into_casts() -> None:
    weight = rs.randn(3, 3)

    def loss(x: rs.Tensor) -> rs.Tensor:
        with rs.autocast("cpu"):
            return F.mse_loss(x @ weight, rs.zeros(3))

    x = rs.randn(4, 3)
    each = rs.stack([rs.func.grad(loss)(row) for row in x])
    assert each.dtype is rs.float32
    assert rs.allclose(rs.vmap(rs.func.grad(loss))(x), each, rtol=0.05, atol=0.02)


def test_inference_mode_and_no_grad_are_cast_too() -> None:
    layer = nn.Linear(3, 2)
    with rs.autocast("cpu"):
        with rs.inference_mode():
            assert layer(rs.ones(1, 3)).dtype is rs.bfloat16
        with rs.no_grad():
            assert layer(rs.ones(1, 3)).dtype is rs.bfloat16


def test_a_custom_operator_gets_its_inputs_cast() -> None:
    @rs.library.custom_op("autocast_tests::seen", mutates_args=())
    def seen(x: rs.Tensor, n: int) -> rs.Tensor:
        assert not rs.is_autocast_enabled("cpu") or x.dtype is rs.float32
        return x.clone()

    x = rs.ones(2)
    with rs.autocast("cpu"):
        assert seen(x, 1).dtype is rs.float32
    rs.library.register_autocast("autocast_tests::seen", "cpu", rs.float16)
    with rs.autocast("cpu"):
        assert seen(x, 1).dtype is rs.float16
        assert seen(x.double(), n=1).dtype is rs.float64
        assert rs.is_autocast_enabled("cpu")
    assert seen(x, 1).dtype is rs.float32
    for device_type, error in ((0, "Expected `device_type` of type `str`"), ("mps", "Unknown device type: mps")):
        with pytest.raises(ValueError, match=error):
            seen.register_autocast(device_type, rs.float16)


def test_autocast_decorator_is_a_public_name() -> None:
    assert autocast_mode.autocast_decorator(rs.autocast("cpu"), product)().dtype is rs.bfloat16
