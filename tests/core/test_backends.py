"""Backends from outside the tree: registration, devices, ops they lack, and ops whose results may vary on them."""

import warnings
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

import resilin
import resilin.nn.functional as F
from resilin.core import determinism
from resilin.core import device as devices
from resilin.core.backends import ArrayBackend, NumpyBackend, make_xp
from resilin.core.ops.registry import OPS, Op, override


class Tiny(NumpyBackend):
    """Two devices over numpy, without Fourier transforms, erfc, and a fixed order of scatters."""

    type = "tiny"
    unsupported = MappingProxyType({"erfc": "it has no table of it", "conv2d": "it has no such unit"})
    nondeterministic = MappingProxyType(
        {
            "scatter_add_zeros": "sums with atomics",
            "take_along_axis_backward": "sums with atomics",
            "hypot": "for the sake of this test",
            "concat": "for the sake of this test",
        }
    )

    def __init__(self):
        super().__init__(make_xp())
        del self.xp.linalg, self.xp.cos

    def count(self):
        return 2

    def to_host(self, array):
        return array.copy()


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(devices, "_BACKENDS", dict(devices._BACKENDS))
    monkeypatch.setattr(devices, "_DEVICES", dict(devices._DEVICES))
    backend = Tiny()
    resilin.register_backend(backend)
    yield backend
    for op in OPS.values():
        op.impls.pop("tiny", None)


@pytest.fixture(autouse=True)
def _as_it_was():
    mode, fill = determinism.choice.mode, determinism.choice.fill
    yield
    determinism.choice.mode, determinism.choice.fill = mode, fill


def test_a_model_trains_on_a_registered_backend(tiny):
    model = resilin.nn.Sequential(resilin.nn.Linear(3, 4), resilin.nn.ReLU(), resilin.nn.Linear(4, 2)).to("tiny:1")
    optimizer = resilin.optim.SGD(model.parameters(), 0.1)
    x, y = resilin.randn(8, 3).to("tiny:1"), resilin.randint(0, 2, (8,)).to("tiny:1")
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert str(next(model.parameters()).grad.device) == "tiny:1"
    assert str(x.device) == "tiny:1"
    assert str(resilin.ones(1, device="tiny").device) == "tiny:0"


def test_devices_of_a_backend_do_not_mix_and_end_at_its_count(tiny):
    with pytest.raises(RuntimeError, match=r"same device, found tiny:0 and tiny:1"):
        resilin.ones(1, device="tiny:0") * resilin.ones(1, device="tiny:1")
    with pytest.raises(RuntimeError, match=r"tiny:2 does not exist: tiny has 2 device"):
        resilin.device("tiny:2")


def test_an_op_that_the_backend_refuses_names_itself_and_the_backend(tiny):
    x = resilin.ones(2, device="tiny")
    with pytest.raises(NotImplementedError, match=r"erfc is not supported on tiny devices: it has no table of it"):
        resilin.special.erfc(x)
    assert resilin.special.erfc(x.cpu()).shape == (2,)
    with pytest.raises(NotImplementedError, match=r"conv2d is not supported on tiny devices: it has no such unit"):
        F.conv2d(resilin.ones(1, 1, 3, 3, device="tiny"), resilin.ones(1, 1, 2, 2, device="tiny"))


def test_an_op_whose_function_the_backend_lacks_names_itself_the_function_and_the_backend(tiny):
    x = resilin.ones(2, device="tiny", requires_grad=True)
    with pytest.raises(NotImplementedError, match=r"cos is not supported on tiny devices: .*no function 'cos'"):
        x.cos()
    with pytest.raises(NotImplementedError, match=r"eig.* is not supported on tiny devices"):
        resilin.linalg.eigvals(resilin.ones(2, 2, device="tiny"))
    with pytest.raises(NotImplementedError, match=r"the gradient of sin is not supported on tiny devices"):
        x.sin().sum().backward()


def test_a_backend_overrides_an_op_of_any_kind(tiny):
    calls = []

    def forward(xp, a, b):
        calls.append("forward")
        return a * b, "kept"

    def rule(xp, needs, g, y, residual, a, b):
        calls.append(residual)
        return g * b, g * a

    override("multiply", "tiny", forward, rule, residual=True)
    x = resilin.full((2,), 3.0, device="tiny", requires_grad=True)
    (x * x).sum().backward()
    assert x.grad.cpu().tolist() == [6.0, 6.0]
    assert calls == ["forward", "kept"]
    assert (resilin.ones(2) * 2).tolist() == [2.0, 2.0]
    assert calls == ["forward", "kept"]
    x = resilin.ones(2, requires_grad=True)  # on the CPU, products may be written over: its rule does not read them
    (x * x).mul_(3).sum().backward()
    assert x.grad.tolist() == [6.0, 6.0]


def test_a_registration_that_cannot_be_is_refused_before_anything_changes(tiny):
    class Nameless(NumpyBackend):
        type = ""

    class Wrong(NumpyBackend):
        type = "wrong"
        unsupported = MappingProxyType({"no_such_op": "why"})

    class Bare(ArrayBackend):
        type = "bare"

        def from_host(self, array, index):
            return array

        def to_host(self, array):
            return array

        def synchronize(self, index):
            pass

    with pytest.raises(TypeError, match=r"a resilin\.core\.backends\.ArrayBackend, got 3"):
        resilin.register_backend(3)
    with pytest.raises(TypeError, match=r"a resilin\.core\.backends\.ArrayBackend"):
        resilin.register_backend(Tiny)
    with pytest.raises(ValueError, match="`type` is a name"):
        resilin.register_backend(Nameless(make_xp()))
    with pytest.raises(ValueError, match="names op 'no_such_op', which is not declared"):
        resilin.register_backend(Wrong(make_xp()))
    with pytest.raises(ValueError, match="has no `xp`"):
        resilin.register_backend(Bare())
    with pytest.raises(RuntimeError, match="already has a backend"):
        resilin.register_backend(tiny)
    with pytest.raises(RuntimeError, match="no backend is registered for device type 'wrong'"):
        resilin.device("wrong")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((3.5,), TypeError, "got 3.5"),
        ((None,), TypeError, "got None"),
        (("sim", "x"), TypeError, "got 'x'"),
        (("sim", -1), RuntimeError, "sim:-1 does not exist"),
        (("sim:0", 1), RuntimeError, "has an index already"),
        (("sim:-1",), RuntimeError, "invalid device string"),
        (("sim:²",), RuntimeError, "invalid device string"),
        (("",), RuntimeError, "no backend is registered"),
    ],
)
def test_what_is_no_device_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        resilin.device(*arguments)


def _varying():
    x = resilin.ones(3, device="tiny", requires_grad=True)
    index = resilin.tensor([0, 0, 1]).to("tiny")
    return {
        "scatter_add_zeros": lambda: x.detach().scatter_add(0, index, x.detach()),
        "take_along_axis_backward": lambda: x.gather(0, index).sum().backward(),
        "hypot": lambda: resilin.hypot(x, x),
        "concat": lambda: resilin.cat([x, x]),
    }


@pytest.mark.parametrize("name", list(Tiny.nondeterministic))
def test_an_op_without_a_deterministic_form_raises_and_names_itself(tiny, name):
    run = _varying()[name]
    run()
    resilin.use_deterministic_algorithms(True)
    with pytest.raises(RuntimeError, match=rf"^{name} does not have a deterministic implementation on tiny devices"):
        run()
    resilin.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match=rf"^{name} does not have a deterministic"):
        run()
    resilin.use_deterministic_algorithms(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run()


def test_a_warning_of_such_an_op_shows_the_line_of_the_user_also_in_backward():
    op = Op("swayed", lambda xp, x: x * 2, {"deterministic": False})
    op.vjp(lambda xp, g, _y, _x: op.call(g) if hasattr(g, "_array") else op.generic.forward(xp, g))
    resilin.use_deterministic_algorithms(True, warn_only=True)
    x = resilin.ones(2, requires_grad=True)
    with pytest.warns(UserWarning, match="swayed") as seen:
        op.call(x).sum().backward()
    assert [Path(each.filename) for each in seen] == [Path(__file__)] * 2


def test_an_op_declared_as_not_deterministic_is_so_on_every_device():
    op = Op("shaken", lambda xp, x: x * 2, {"deterministic": False})
    assert op.call(resilin.ones(1)).item() == 2.0
    resilin.use_deterministic_algorithms(True)
    for where in ("cpu", "sim:1"):
        with pytest.raises(RuntimeError, match=r"^shaken does not have a deterministic implementation on all devices"):
            op.call(resilin.ones(1, device=where))


def test_the_choice_is_that_of_the_moment_the_gradient_is_computed(tiny):
    x = resilin.ones(3, device="tiny", requires_grad=True)
    y = x.gather(0, resilin.tensor([0, 0, 1]).to("tiny")).sum()
    resilin.use_deterministic_algorithms(True)
    with pytest.raises(RuntimeError, match="take_along_axis_backward does not have"):
        y.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="take_along_axis_backward does not have"):
        resilin.autograd.grad(y, x, create_graph=True, retain_graph=True)
    resilin.use_deterministic_algorithms(False)
    y.backward()
    assert x.grad.cpu().tolist() == [2.0, 1.0, 0.0]


def test_other_devices_are_not_concerned(tiny):
    resilin.use_deterministic_algorithms(True)
    x = resilin.ones(3, requires_grad=True)
    x.gather(0, resilin.tensor([0, 0, 1])).sum().backward()
    assert (x + x).detach().tolist() == [2.0] * 3


def test_the_switch_reads_as_in_pytorch():
    def state():
        return (
            resilin.are_deterministic_algorithms_enabled(),
            resilin.is_deterministic_algorithms_warn_only_enabled(),
            resilin.get_deterministic_debug_mode(),
        )

    assert state() == (False, False, 0)
    resilin.use_deterministic_algorithms(True)
    assert state() == (True, False, 2)
    resilin.use_deterministic_algorithms(True, warn_only=True)
    assert state() == (True, True, 1)
    for word, number in (("default", 0), ("warn", 1), ("error", 2)):
        resilin.set_deterministic_debug_mode(word)
        assert resilin.get_deterministic_debug_mode() == number
        resilin.set_deterministic_debug_mode(number)
        assert resilin.get_deterministic_debug_mode() == number
    resilin.use_deterministic_algorithms(False)
    assert state() == (False, False, 0)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: resilin.use_deterministic_algorithms(1), TypeError, "mode must be bool, not int"),
        (lambda: resilin.use_deterministic_algorithms(True, warn_only=None), TypeError, "warn_only must be bool"),
        (lambda: resilin.set_deterministic_debug_mode("x"), RuntimeError, "expected one of `default`"),
        (lambda: resilin.set_deterministic_debug_mode(3), RuntimeError, "expected 0, 1, or 2, but got 3"),
        (lambda: resilin.set_deterministic_debug_mode(1.0), TypeError, "must be str or int"),
        (lambda: setattr(resilin.utils.deterministic, "fill_uninitialized_memory", 1), RuntimeError, "expected a bool"),
    ],
)
def test_the_switch_refuses_other_values(call, error, message):
    with pytest.raises(error, match=message):
        call()
    assert resilin.get_deterministic_debug_mode() == 0


def test_memory_that_nobody_wrote_is_filled_as_in_pytorch():
    resilin.use_deterministic_algorithms(True)
    for made in (resilin.empty(2), resilin.empty_like(resilin.ones(2)), resilin.ones(1).new_empty(2)):
        assert np.isnan(made.numpy()).all()
    assert np.isnan(resilin.ones(1).resize_(3).numpy()[1:]).all()
    assert resilin.empty(1, dtype=resilin.int32).item() == 2147483647
    assert resilin.empty(1, dtype=resilin.uint8).item() == 255
    assert resilin.empty(1, dtype=resilin.bool).item() is True
    assert np.isnan(resilin.empty(1, dtype=resilin.bfloat16).float().item())
    assert resilin.empty(1, dtype=resilin.complex64).item() != resilin.empty(1, dtype=resilin.complex64).item()
    resilin.utils.deterministic.fill_uninitialized_memory = False
    assert resilin.empty(2).shape == (2,)
    assert resilin.utils.deterministic.fill_uninitialized_memory is False
