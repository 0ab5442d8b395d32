"""Edges of layers and losses: saturated, masked, empty, NaN inputs give what is written down of PyTorch 2.13."""

from __future__ import annotations

import math

import pytest

import resilin
from resilin import nn
from resilin.nn import functional as F

INF = math.inf


def gradient(function, values):
    x = resilin.tensor(values, requires_grad=True)
    function(x).sum().backward()
    return x.grad.tolist()


def test_the_gradient_of_binary_cross_entropy_is_finite_where_a_sigmoid_is_saturated():
    target = resilin.tensor([0.0, 1.0, 1.0, 0.0])
    found = gradient(lambda x: F.binary_cross_entropy(x, target, reduction="none"), [0.0, 1.0, 0.0, 1.0])
    assert found == pytest.approx([0.0, 0.0, -1e12, 1e12])


def test_training_through_a_saturated_sigmoid_gives_finite_gradients():
    found = gradient(lambda x: nn.BCELoss()(x.sigmoid(), resilin.tensor([1.0, 0.0])), [40.0, 40.0])
    assert all(map(math.isfinite, found))


def test_binary_cross_entropy_limits_its_logarithms_to_minus_100():
    losses = F.binary_cross_entropy(resilin.tensor([0.0, 1.0, 0.0]), resilin.tensor([1.0, 0.0, 0.0]), reduction="none")
    assert losses.tolist() == [100.0, 100.0, 0.0]


def test_binary_cross_entropy_differentiates_its_target():
    target = resilin.tensor([0.2, 0.9], requires_grad=True)
    F.binary_cross_entropy(resilin.tensor([0.3, 0.6]), target).backward()
    assert target.grad.tolist() == pytest.approx([0.42364889, -0.20273259])


@pytest.mark.parametrize("loss", [F.nll_loss, F.cross_entropy])
@pytest.mark.parametrize(("shape", "target"), [((3,), 0), ((2, 3), [0, 0])])
def test_the_mean_loss_of_ignored_targets_alone_is_nan_and_its_gradient_0(loss, shape, target):
    x = resilin.zeros(*shape, requires_grad=True)
    y = loss(x, resilin.tensor(target), ignore_index=0)
    y.backward()
    assert math.isnan(y.item())
    assert not x.grad.count_nonzero().item()


@pytest.mark.parametrize("learned", [False, True], ids=["constant mask", "mask with a gradient"])
def test_a_query_that_may_see_no_key_gives_zeros_and_passes_no_gradient(learned):
    mask = resilin.tensor([[-INF, -INF], [0.0, 0.0]], requires_grad=learned)
    x = resilin.ones(1, 2, 4, requires_grad=True)
    y = F.scaled_dot_product_attention(x, x, x, mask)
    y.sum().backward()
    assert y.tolist() == [[[0.0] * 4, [1.0] * 4]]
    assert x.grad.tolist() == [[[0.5] * 4] * 2]
    assert not learned or mask.grad.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def attend(**masks):
    query, key = resilin.zeros(3, 2, 4), resilin.zeros(5, 2, 4)
    return nn.MultiheadAttention(4, 2)(query, key, key, **masks)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("key_padding_mask", (5, 2)), ("attn_mask", (5, 3)), ("attn_mask", (2, 2, 3, 5)), ("attn_mask", (2, 3, 5))],
)
def test_attention_names_a_mask_whose_shape_does_not_fit(name, shape):
    with pytest.raises(ValueError, match=f"expected {name} of shape"):
        attend(**{name: resilin.zeros(*shape, dtype=resilin.bool)})


def test_without_a_batch_attention_takes_a_padding_mask_of_one_dimension_only():
    query, layer = resilin.zeros(3, 4), nn.MultiheadAttention(4, 2)
    layer(query, query, query, key_padding_mask=resilin.zeros(3, dtype=resilin.bool))
    with pytest.raises(ValueError, match=r"expected key_padding_mask of shape \(3,\), got \(1, 3\)"):
        layer(query, query, query, key_padding_mask=resilin.zeros(1, 3, dtype=resilin.bool))


@pytest.mark.parametrize(("name", "shape"), [("key_padding_mask", (2, 5)), ("attn_mask", (3, 5))])
def test_attention_refuses_masks_of_integers(name, shape):
    with pytest.raises(ValueError, match=f"only bool and floating types of {name} are supported"):
        attend(**{name: resilin.zeros(*shape, dtype=resilin.int64)})


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (F.elu, 1.0),
        (F.celu, 1.0),
        (F.hardswish, 1.0),
        (F.hardshrink, 1.0),
        (F.softshrink, 1.0),
        (F.hardtanh, 1.0),
        (F.relu6, 1.0),
        (F.hardsigmoid, 0.0),
        (lambda x: F.threshold(x, 0.5, 1.0), 1.0),
    ],
)
def test_a_piecewise_activation_passes_the_gradient_of_nan_on_as_pytorch_does(function, expected):
    assert gradient(function, [math.nan]) == [expected]


@pytest.mark.parametrize(
    ("mode", "pad", "expected"),
    [
        ("reflect", (-1, 2), [1, 2, 3, 4, 3, 2]),
        ("reflect", (-3, 3), [3, 4, 3, 2, 1]),
        ("reflect", (-5, 4), [3, 2, 1, 0]),
        ("reflect", (3, -3), [3, 2, 1, 0, 1]),
        ("replicate", (-1, -1), [1, 2, 3]),
        ("replicate", (5, -1), [0, 0, 0, 0, 0, 0, 1, 2, 3]),
        ("circular", (-1, 2), [1, 2, 3, 4, 1, 2]),
        ("circular", (4, -1), [0, 1, 2, 3, 0, 1, 2, 3]),
    ],
)
def test_negative_padding_cuts_in_every_mode(mode, pad, expected):
    assert F.pad(resilin.arange(5.0).reshape(1, 1, 5), pad, mode=mode).tolist() == [[expected]]


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_padding_from_inside_must_keep_an_element(mode):
    with pytest.raises(RuntimeError, match="must keep an element"):
        F.pad(resilin.zeros(1, 1, 5), (-3, -2), mode=mode)


def test_padding_from_inside_refuses_a_value():
    with pytest.raises(RuntimeError, match="doesn't take in value argument"):
        F.pad(resilin.zeros(1, 1, 5), (1, 1), mode="replicate", value=2.0)


def test_an_empty_batch_goes_through_three_dimensional_pooling():
    out, indices = F.max_pool3d(resilin.zeros(0, 1, 4, 4, 4), 2, return_indices=True)
    assert out.shape == indices.shape == (0, 1, 2, 2, 2)


def test_an_empty_batch_goes_through_unpooling():
    assert F.max_unpool1d(resilin.zeros(0, 1, 4), resilin.zeros(0, 1, 4, dtype=resilin.int64), 2).shape == (0, 1, 8)
    none = resilin.zeros(0, 1, 4, 4, dtype=resilin.int64)
    assert F.max_unpool2d(resilin.zeros(0, 1, 4, 4), none, 2).shape == (0, 1, 8, 8)


@pytest.mark.parametrize("shape", [(1, 2), (1, 2, 1)])
def test_group_norm_refuses_a_single_value_per_group(shape):
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        nn.GroupNorm(2, 2)(resilin.ones(shape))


def test_feature_alpha_dropout_takes_any_shape_outside_training():
    assert nn.FeatureAlphaDropout().eval()(resilin.ones(3)).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.InstanceNorm1d])
def test_statistics_load_from_a_plain_dict_without_the_counter_of_batches(kind):
    layer = kind(2, track_running_stats=True)
    state = dict(layer.state_dict())
    del state["num_batches_tracked"]
    state["running_mean"] = resilin.tensor([3.0, 4.0])
    assert not any(layer.load_state_dict(state))
    assert layer.running_mean.tolist() == [3.0, 4.0]


def test_a_state_dict_of_this_version_must_hold_the_counter_of_batches():
    layer = nn.BatchNorm1d(2)
    state = layer.state_dict()
    del state["num_batches_tracked"]
    with pytest.raises(ValueError, match="num_batches_tracked"):
        layer.load_state_dict(state)


def test_given_random_samples_of_fractional_pooling_are_part_of_the_state():
    samples = resilin.ones(1, 1, 2)
    assert list(nn.FractionalMaxPool2d(2, output_size=1, _random_samples=samples).state_dict()) == ["_random_samples"]
    assert not nn.FractionalMaxPool2d(2, output_size=1).state_dict()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("double", "float64"), ("half", "float16"), ("long", "int64"), ("int", "int32"), ("byte", "uint8")],
)
def test_a_packed_sequence_converts_by_the_names_of_dtypes(name, dtype):
    packed = nn.utils.rnn.pack_sequence([resilin.ones(3), resilin.ones(2)])
    assert getattr(packed, name)().data.dtype is getattr(resilin, dtype)


@pytest.mark.parametrize("distance", [F.pairwise_distance, resilin.cdist])
def test_the_norm_of_order_0_has_a_graph_and_the_gradient_0(distance):
    x = resilin.tensor([[1.0, 2.0]], requires_grad=True)
    y = distance(x, resilin.tensor([[4.0, 2.0]]), p=0.0).sum()
    y.backward()
    assert y.item() in (1.0, 2.0)  # pairwise_distance adds eps, so that no element is 0
    assert x.grad.tolist() == [[0.0, 0.0]]


def test_the_norm_of_order_0_counts_nan():
    assert resilin.tensor([math.nan, 0.0, -2.0]).norm(0).item() == 2.0


def test_a_list_of_parameters_keeps_what_is_no_tensor_out_of_the_state():
    values = nn.ParameterList([1, "a", resilin.ones(2), nn.Parameter(resilin.ones(1))])
    assert len(values) == 4
    assert list(values)[:2] == [1, "a"]
    assert list(values.state_dict()) == ["2", "3"]
    assert [type(value) for value in values[2:]] == [nn.Parameter, nn.Parameter]
    values[-1] = resilin.zeros(3)
    assert dict(values.named_parameters())["3"].tolist() == [0.0, 0.0, 0.0]
    assert repr(values).splitlines()[1:3] == ["    (0): Object of type: int", "    (1): Object of type: str"]


@pytest.mark.parametrize(("given", "place"), [([("a", nn.ReLU(), 1)], 0), ([3], 0)])
def test_a_dict_of_modules_names_the_element_that_is_no_pair(given, place):
    with pytest.raises(ValueError, match=rf"expected \(name, module\) as element {place}"):
        nn.ModuleDict().update(given)


def test_vector_to_parameters_wants_a_tensor():
    with pytest.raises(TypeError, match="expected a Tensor, got int"):
        nn.utils.vector_to_parameters(3, [nn.Parameter(resilin.ones(1))])


def test_calculate_gain_wants_a_number_for_leaky_relu():
    with pytest.raises(ValueError, match="negative_slope 'a' is not a valid number"):
        nn.init.calculate_gain("leaky_relu", "a")


@pytest.mark.parametrize("factor", [math.nan, INF])
def test_interpolate_wants_a_finite_scale(factor):
    with pytest.raises(ValueError, match="expected finite scale factors"):
        F.interpolate(resilin.ones(1, 1, 3), scale_factor=factor)


@pytest.mark.parametrize(
    "make",
    [
        lambda: F.adaptive_avg_pool2d(resilin.ones(1, 1, 3, 3), 2**33),
        lambda: F.adaptive_max_pool2d(resilin.ones(1, 1, 3, 3), 2**40),
        lambda: F.interpolate(resilin.ones(1, 1, 3), scale_factor=1e12),
    ],
)
def test_an_output_that_no_memory_holds_is_refused_before_any_work(make):
    with pytest.raises(RuntimeError, match="not enough memory"):
        make()


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmin"])
def test_softmax_without_a_dimension_warns(name):
    with pytest.warns(UserWarning, match="implicit choice of a dimension"):
        getattr(F, name)(resilin.ones(2, 2))


def test_the_mean_of_kl_div_warns_that_it_is_not_the_divergence():
    with pytest.warns(UserWarning, match="batchmean"):
        F.kl_div(resilin.ones(2), resilin.ones(2))


def test_start_values_of_nothing_warn():
    with pytest.warns(UserWarning, match="zero-element"):
        nn.Linear(2, 0)


def test_the_former_names_of_start_values_warn_and_work():
    with pytest.warns(FutureWarning, match="deprecated in favor of `nn.init.constant_`"):
        assert nn.init.constant(resilin.empty(2), 3.0).tolist() == [3.0, 3.0]


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 3)])
def test_orthogonal_by_reflections_needs_no_base(shape):
    resilin.manual_seed(0)
    parametrize = nn.utils.parametrizations.orthogonal
    layer = nn.Linear(*shape, dtype=resilin.float64)
    based, plain = nn.Linear(*shape, dtype=resilin.float64), layer
    based.load_state_dict(layer.state_dict())
    parametrize(based, orthogonal_map="householder")
    parametrize(plain, orthogonal_map="householder", use_trivialization=False)
    assert list(plain.state_dict()) == ["bias", "parametrizations.weight.original"]
    assert resilin.allclose(plain.weight, based.weight, atol=1e-12)
    plain.weight = based.weight.detach().flip(0)
    assert resilin.allclose(plain.weight, based.weight.flip(0), atol=1e-12)


@pytest.mark.parametrize(("layer", "dims"), [(nn.ConvTranspose1d, 1), (nn.ConvTranspose2d, 2), (nn.ConvTranspose3d, 3)])
def test_an_empty_batch_may_become_images_without_elements(layer, dims):
    x = resilin.zeros(0, 1, *(2,) * dims, requires_grad=True)
    convolution = layer(1, 2, 1, padding=1)
    y = convolution(x)
    y.sum().backward()
    assert y.shape == (0, 2, *(0,) * dims)
    assert x.grad.shape == x.shape
    assert not convolution.weight.grad.any()
    with pytest.raises(RuntimeError, match="gives an output of size"):
        convolution(resilin.zeros(1, 1, *(2,) * dims))


def test_a_parameter_is_made_of_a_tensor():
    with pytest.raises(TypeError, match="Parameter: expected a Tensor, got list"):
        nn.Parameter([1])
