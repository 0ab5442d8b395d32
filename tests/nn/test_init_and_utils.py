"""Start values, clipping, parameters as a vector, dropout."""

import math

import numpy as np
import pytest

import resilin
from resilin import nn
from resilin.core import rng
from resilin.errors import ResilinError, UsageError


def spread(tensor):
    values = tensor.detach().numpy()
    return values.mean(), values.std(), values.min(), values.max()


@pytest.fixture(autouse=True)
def seeded():
    rng.manual_seed(0)


@pytest.mark.parametrize(
    ("fill", "std", "bound"),
    [
        (nn.init.xavier_uniform_, math.sqrt(2 / 500), math.sqrt(6 / 500)),
        (nn.init.xavier_normal_, math.sqrt(2 / 500), None),
        (nn.init.kaiming_uniform_, math.sqrt(2 / 300), math.sqrt(6 / 300)),
        (lambda t: nn.init.kaiming_normal_(t, mode="fan_out", nonlinearity="relu"), math.sqrt(2 / 200), None),
        (lambda t: nn.init.uniform_(t, -2, 2), 2 / math.sqrt(3), 2),
        (lambda t: nn.init.normal_(t, 0, 3), 3, None),
        (lambda t: nn.init.trunc_normal_(t, std=1, a=-1, b=1), 0.5396, 1),
    ],
    ids=["xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal", "uniform", "normal", "trunc_normal"],
)
def test_start_values_have_the_published_variance(fill, std, bound):
    tensor = resilin.empty(200, 300)
    assert fill(tensor) is tensor
    mean, found, low, high = spread(tensor)
    assert mean == pytest.approx(0, abs=4 * std / math.sqrt(tensor.numel()))
    assert found == pytest.approx(std, rel=0.02)
    if bound is not None:
        assert -bound <= low < -0.99 * bound
        assert 0.99 * bound < high <= bound


def test_layers_start_as_in_pytorch():
    for layer, fan in ((nn.Linear(400, 300), 400), (nn.Conv2d(16, 64, 5), 400)):
        bound = 1 / math.sqrt(fan)
        for parameter in layer.parameters():
            _, std, low, high = spread(parameter)
            assert -bound <= low < -0.9 * bound
            assert 0.9 * bound < high <= bound
            assert std == pytest.approx(bound / math.sqrt(3), rel=0.1)
    _, std, _, _ = spread(nn.Embedding(300, 50).weight)
    assert std == pytest.approx(1, rel=0.05)


def test_the_same_seed_gives_the_same_start_values():
    first = nn.Linear(5, 5).weight.tolist()
    assert nn.Linear(5, 5).weight.tolist() != first
    rng.manual_seed(0)
    assert nn.Linear(5, 5).weight.tolist() == first


def test_constant_start_values():
    tensor = resilin.empty(2, 3)
    assert nn.init.constant_(tensor, 4).tolist() == [[4, 4, 4]] * 2
    assert nn.init.eye_(tensor).tolist() == [[1, 0, 0], [0, 1, 0]]
    with pytest.raises(UsageError, match="at least two dimensions"):
        nn.init.xavier_uniform_(resilin.empty(3))
    with pytest.raises(UsageError, match="unknown nonlinearity 'sine'"):
        nn.init.calculate_gain("sine")


def with_gradients(*gradients):
    parameters = []
    for gradient in gradients:
        parameter = nn.Parameter(resilin.zeros(len(gradient)))
        parameter.grad = resilin.tensor(gradient)
        parameters.append(parameter)
    return parameters


def test_clip_grad_norm_scales_all_gradients_together():
    parameters = [*with_gradients([3.0, 0.0], [4.0]), nn.Parameter(resilin.zeros(1))]
    assert nn.utils.clip_grad_norm_(parameters, 1.0).item() == 5
    assert parameters[0].grad.numpy() == pytest.approx([0.6, 0], rel=1e-5)
    assert parameters[1].grad.item() == pytest.approx(0.8, rel=1e-5)
    assert parameters[2].grad is None


def test_clip_grad_norm_leaves_small_gradients_alone():
    parameters = with_gradients([3.0], [4.0])
    assert nn.utils.clip_grad_norm_(parameters, 5.1).item() == 5
    assert [p.grad.item() for p in parameters] == [3, 4]
    assert nn.utils.clip_grad_norm_(parameters, 100, norm_type=math.inf).item() == 4


def test_clip_grad_norm_says_when_there_is_nothing_to_clip_to():
    parameters = with_gradients([math.inf])
    with pytest.raises(ResilinError, match="is inf"):
        nn.utils.clip_grad_norm_(parameters, 1.0, error_if_nonfinite=True)
    assert nn.utils.clip_grad_norm_([], 1.0).item() == 0


def test_clip_grad_norm_counts_the_size_of_complex_gradients():
    p, q = nn.Parameter(resilin.zeros(2)), nn.Parameter(resilin.zeros(2, dtype=resilin.complex64))
    p.grad, q.grad = resilin.tensor([3.0, 4.0]), resilin.tensor([3 + 4j, 0])
    total = nn.utils.clip_grad_norm_([p, q], 1.0)
    assert total.dtype == resilin.float32
    assert float(total) == pytest.approx(50**0.5)
    np.testing.assert_allclose(p.grad.numpy(), np.array([3, 4]) / 50**0.5, rtol=1e-5)
    np.testing.assert_allclose(q.grad.numpy(), np.array([3 + 4j, 0]) / 50**0.5, rtol=1e-5)


@pytest.mark.parametrize("value", [1e-30, 1e30])
def test_the_norm_of_a_single_gradient_neither_vanishes_nor_overflows(value):
    assert float(nn.utils.get_total_norm([resilin.tensor([value])])) == pytest.approx(value)


@pytest.mark.parametrize("value", [0.0, 1e30, float("inf"), float("nan")])
def test_clip_grad_norm_takes_extreme_gradients_without_numpys_warnings(value):
    p = nn.Parameter(resilin.zeros(2))
    p.grad = resilin.full((2,), value)
    nn.utils.clip_grad_norm_([p], 1.0)  # warnings are errors here
    assert p.grad.tolist() == pytest.approx([0.0, 0.0] if value in (0.0, 1e30) else [float("nan")] * 2, nan_ok=True)


def test_the_older_name_of_clip_grad_norm_warns():
    p = nn.Parameter(resilin.zeros(2))
    p.grad = resilin.tensor([3.0, 4.0])
    with pytest.warns(FutureWarning, match="clip_grad_norm_"):
        assert float(nn.utils.clip_grad_norm([p], 1.0)) == 5


def test_clip_grad_value_cuts_every_element():
    (parameter,) = with_gradients([-3.0, 0.5, 2.0])
    nn.utils.clip_grad_value_(parameter, 1.0)
    assert parameter.grad.tolist() == [-1, 0.5, 1]


@pytest.mark.parametrize("dtype", [resilin.float32, resilin.float64, resilin.float16, resilin.bfloat16])
def test_clip_grad_value_leaves_nan_and_cuts_infinities_of_any_dtype_and_strides(dtype):
    whole = resilin.tensor([[math.nan, math.inf, -math.inf], [0.25, -2.0, 0.0]]).to(dtype)
    for grad in (whole.clone(), whole.t(), whole[:, 1:], whole[:0]):
        parameter = nn.Parameter(resilin.zeros(*grad.shape, dtype=dtype))
        parameter.grad = grad
        expected, version = np.clip(grad.double().numpy(), -0.5, 0.5), grad._version
        nn.utils.clip_grad_value_([parameter], 0.5)
        np.testing.assert_array_equal(parameter.grad.double().numpy(), expected)
        assert parameter.grad._version == version + 1


def test_parameters_of_a_vector_share_its_memory_and_see_its_writes():
    vector = resilin.arange(6.0)
    first, second = nn.Parameter(resilin.zeros(2, 2)), nn.Parameter(resilin.zeros(2))
    nn.utils.vector_to_parameters(vector, [first, second])
    before = first._version
    vector.mul_(2)
    assert first.tolist() == [[0, 2], [4, 6]]
    assert second.tolist() == [8, 10]
    assert first._version == before  # as with `data`: backward does not notice
    nn.utils.vector_to_parameters(resilin.arange(12.0)[::2], [first, second])
    assert second.tolist() == [8, 10]
    assert vector.tolist() == [0, 2, 4, 6, 8, 10]


def test_parameters_become_a_vector_and_return():
    model, other = nn.Linear(2, 3), nn.Linear(2, 3)
    vector = nn.utils.parameters_to_vector(model.parameters())
    assert vector.shape == (9,)
    nn.utils.vector_to_parameters(vector.detach(), other.parameters())
    assert other.weight.tolist() == model.weight.tolist()
    assert other.bias.tolist() == model.bias.tolist()
    with pytest.raises(UsageError, match="vector of 9 elements"):
        nn.utils.vector_to_parameters(resilin.zeros(8), other.parameters())


def test_dropout_keeps_the_mean_in_training_and_does_nothing_in_eval():
    layer, x = nn.Dropout(0.25), resilin.ones(20_000)
    y = layer(x).numpy()
    assert np.unique(y) == pytest.approx([0, 4 / 3])
    assert y.mean() == pytest.approx(1, abs=0.03)
    assert layer.eval()(x).tolist() == x.tolist()
    assert nn.Dropout(1.0)(x).abs().sum().item() == 0


def test_dropout_gives_its_mask_to_the_gradient():
    x = resilin.ones(100).requires_grad_()
    y = nn.Dropout(0.5)(x)
    y.sum().backward()
    assert x.grad.tolist() == y.tolist()
