"""What the elementwise optimizers share, and Lion, which PyTorch has not. Their numbers: test_optimizers.py."""

import numpy as np
import pytest

import resilin
from resilin import optim
from resilin.errors import UsageError

NAMES = ["Adagrad", "Adadelta", "Adamax", "RMSprop", "Rprop", "NAdam", "RAdam", "ASGD", "Lion"]


@pytest.mark.parametrize("name", NAMES)
def test_a_complex_parameter_is_updated_as_its_two_parts(name):
    rng = np.random.default_rng(0)
    start, grads = rng.standard_normal((3, 2)), rng.standard_normal((8, 3, 2))
    pairs = resilin.tensor(start).requires_grad_()
    whole = resilin.tensor(start.view(np.complex128)[:, 0]).requires_grad_()
    optimizers = [getattr(optim, name)([param], lr=0.1) for param in (pairs, whole)]
    for grad in grads:
        pairs.grad, whole.grad = resilin.tensor(grad), resilin.tensor(grad.view(np.complex128)[:, 0])
        for optimizer in optimizers:
            optimizer.step()
    found = whole.detach().numpy()
    np.testing.assert_allclose(np.stack([found.real, found.imag], -1), pairs.detach().numpy(), rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_raises_the_version_and_goes_downhill_from_a_tensor_rate(name):
    param = resilin.full((5,), 3.0).requires_grad_()
    optimizer = getattr(optim, name)([param], lr=resilin.tensor(0.1))
    before = param._version
    for _ in range(3):
        optimizer.zero_grad()
        (param * param).sum().backward()
        optimizer.step()
    assert param._version > before
    assert (param.detach().numpy() < 3).all()


@pytest.mark.parametrize("name", NAMES)
def test_maximize_mirrors_the_gradient(name):
    up, down = (resilin.full((5,), 3.0).requires_grad_() for _ in range(2))
    up.grad, down.grad = resilin.linspace(-1, 1, 5), -resilin.linspace(-1, 1, 5)
    getattr(optim, name)([up], maximize=True).step()
    getattr(optim, name)([down]).step()
    assert up.tolist() == down.tolist()


def test_lion_moves_by_the_sign_of_momentum_and_gradient():
    param = resilin.tensor([1.0, 1.0, 1.0]).requires_grad_()
    optimizer = optim.Lion([param], lr=0.5, betas=(0.5, 0.75), weight_decay=0.2)
    param.grad = resilin.tensor([4.0, -4.0, 0.0])
    optimizer.step()
    np.testing.assert_allclose(param.detach().numpy(), [0.9 - 0.5, 0.9 + 0.5, 0.9], rtol=1e-6)
    assert optimizer.state[param]["exp_avg"].tolist() == [1, -1, 0]
    param.grad = resilin.tensor([-0.5, -0.5, 1.0])  # the momentum outweighs the first one
    optimizer.step()
    expected = [0.4 * 0.9 - 0.5, 1.4 * 0.9 + 0.5, 0.9 * 0.9 - 0.5]
    np.testing.assert_allclose(param.detach().numpy(), expected, rtol=1e-6)


def test_adagrads_state_is_there_before_the_first_step():
    param = resilin.ones(2).requires_grad_()
    optimizer = optim.Adagrad([param], initial_accumulator_value=0.5)
    assert optimizer.state[param]["sum"].tolist() == [0.5, 0.5]
    assert optimizer.state[param]["step"].item() == 0


def test_foreach_and_fused_are_kept_as_options():
    param = resilin.ones(2).requires_grad_()
    assert optim.Adagrad([param], fused=True).param_groups[0]["fused"] is True
    assert optim.RMSprop([param], foreach=False).param_groups[0]["foreach"] is False


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda p: optim.Adagrad(p, lr=-1), UsageError, "Adagrad: lr must not be negative, got -1"),
        (lambda p: optim.Adagrad(p, lr_decay=-1), UsageError, "Adagrad: lr_decay"),
        (lambda p: optim.Adadelta(p, rho=1.5), UsageError, "rho must be between 0 and 1, got 1.5"),
        (lambda p: optim.Adamax(p, betas=(1.0, 0.9)), UsageError, "Adamax: betas"),
        (lambda p: optim.RMSprop(p, momentum=-1), UsageError, "RMSprop: momentum"),
        (lambda p: optim.RMSprop(p, lr=float("nan")), UsageError, "RMSprop: lr"),
        (lambda p: optim.Rprop(p, etas=(0.5, 0.9)), UsageError, "Rprop: etas"),
        (lambda p: optim.NAdam(p, momentum_decay=-1), UsageError, "NAdam: momentum_decay"),
        (lambda p: optim.RAdam(p, weight_decay=-1), UsageError, "RAdam: weight_decay"),
        (lambda p: optim.ASGD(p, weight_decay=-1), UsageError, "ASGD: weight_decay"),
        (lambda p: optim.Lion(p, betas=(0.9, 1)), UsageError, "Lion: betas"),
        (lambda p: optim.SGD(p, lr=resilin.ones(2)), UsageError, r"one element, got shape \[2\]"),
        (lambda p: optim.AdamW(p, foreach=True, fused=True), UsageError, "foreach and fused"),
        (lambda p: optim.Adam(p, capturable=True), NotImplementedError, "Adam: capturable=True.*CUDA graphs"),
        (lambda p: optim.RAdam(p, differentiable=True), NotImplementedError, "RAdam: differentiable=True"),
        (lambda p: optim.SGD([{"params": p, "differentiable": True}]), NotImplementedError, "SGD: differentiable"),
    ],
)
def test_mistakes_are_named(make, error, words):
    with pytest.raises(error, match=words):
        make([resilin.ones(2).requires_grad_()])


def test_a_state_of_another_shape_is_named_at_the_step():
    param = resilin.zeros(1000).requires_grad_()
    optimizer = optim.RMSprop([param])
    param.grad = resilin.ones(1000)
    optimizer.step()
    optimizer.state[param]["square_avg"] = resilin.zeros(3)
    with pytest.raises(UsageError, match=r"RMSprop: square_avg of shape \[3\] does not fit parameter 0"):
        optimizer.step()


def test_a_division_of_zero_by_zero_is_nan_without_a_warning():
    param = resilin.ones(2, dtype=resilin.float64).requires_grad_()
    param.grad = resilin.zeros(2, dtype=resilin.float64)
    optim.Adagrad([param], eps=0).step()
    assert np.isnan(param.detach().numpy()).all()


@pytest.mark.parametrize("name", [*NAMES, "Adam", "AdamW", "SGD"])
@pytest.mark.parametrize("dtype", [resilin.float32, resilin.float64])
def test_a_number_is_updated_as_an_array_of_one_element(name, dtype):
    number, array = (resilin.full(shape, 3.0, dtype=dtype).requires_grad_() for shape in ((), (1,)))
    for param in (number, array):
        optimizer = getattr(optim, name)([param, resilin.ones(2, dtype=resilin.float64).requires_grad_()], lr=0.1)
        for _ in range(3):
            param.grad = param.detach() / 2
            optimizer.step()
    assert number.shape == ()
    assert number.item() == array.item() < 3


@pytest.mark.parametrize("make", [resilin.optim.AdamW, resilin.optim.SGD, resilin.optim.NAdam])
def test_a_parameters_bits_do_not_depend_on_those_beside_it(make):
    def run(apart):
        rng = np.random.default_rng(2)
        values = [rng.standard_normal((9, 7)).astype(dtype) for dtype in (np.float32, np.float64, np.float16)]
        params = [resilin.nn.Parameter(resilin.tensor(value)) for value in (*values, values[0] + 1)]
        optimizers = [make([param], lr=0.1) for param in params] if apart else [make(params, lr=0.1)]
        for step in range(3):
            for number, param in enumerate(params):
                grad = (
                    np.random.default_rng([step, number]).standard_normal((7, 9)).astype(param.numpy(force=True).dtype)
                )
                param.grad = resilin.tensor(grad).t()  # not contiguous
            for optimizer in optimizers:
                optimizer.step()
        return [param.detach().numpy().tobytes() for param in params]

    assert run(apart=True) == run(apart=False)
