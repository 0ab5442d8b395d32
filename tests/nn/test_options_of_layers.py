"""What options of layers may be: integers of any kind, numbers where numbers are meant, and nothing else."""

import numpy as np
import pytest

import resilin
import resilin.nn.functional as F
from resilin import nn

THREE, TWO, ONE = np.int64(3), np.int32(2), np.uint8(1)
IMAGE = resilin.arange(50.0).reshape(1, 2, 5, 5)
WEIGHT = resilin.ones(3, 2, 3, 3)
ROWS, CLASSES = resilin.tensor([[0.5, 1.0, -1.0], [2.0, 0.0, 1.0]]), resilin.tensor([1, 2])


@pytest.mark.parametrize(
    ("layer", "integers", "shape"),
    [
        (nn.Conv2d, (TWO, THREE, THREE, TWO, ONE), (1, 2, 5, 5)),
        (nn.ConvTranspose1d, (TWO, THREE, THREE, TWO), (1, 2, 5)),
        (nn.MaxPool2d, (TWO, ONE, ONE), (1, 2, 5, 5)),
        (nn.AvgPool1d, (TWO, ONE, ONE), (1, 2, 5)),
        (nn.AdaptiveAvgPool2d, (THREE,), (1, 2, 5, 5)),
        (nn.AdaptiveMaxPool1d, (THREE,), (1, 2, 5)),
        (nn.ReflectionPad2d, (TWO,), (1, 2, 5, 5)),
        (nn.Unfold, (TWO, ONE, ONE, TWO), (1, 2, 5, 5)),
        (nn.LayerNorm, (THREE,), (2, 3)),
        (nn.RMSNorm, (THREE,), (2, 3)),
        (nn.GroupNorm, (TWO, np.int64(4)), (2, 4, 3)),
        (nn.Linear, (THREE, TWO), (2, 3)),
        (nn.LPPool2d, (2.0, TWO), (1, 2, 5, 5)),
        (nn.PixelShuffle, (TWO,), (1, 4, 2, 2)),
    ],
)
def test_numpys_integers_are_integers(layer, integers, shape):
    x = resilin.arange(float(np.prod(shape))).reshape(shape)
    taken = layer(*integers)
    plain = layer(*(value if isinstance(value, float) else int(value) for value in integers))
    taken.load_state_dict(plain.state_dict())
    np.testing.assert_array_equal(taken(x).detach().numpy(), plain(x).detach().numpy())


@pytest.mark.parametrize("wrong", [None, "a", [1.0, 2.0], (1.5, 1), True, [], 2.0], ids=repr)
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("stride", lambda v: F.conv2d(IMAGE, WEIGHT, stride=v)),
        ("dilation", lambda v: F.conv2d(IMAGE, WEIGHT, dilation=v)),
        ("kernel_size", lambda v: F.max_pool2d(IMAGE, v)),
        ("padding", lambda v: F.avg_pool2d(IMAGE, 3, 1, v)),
        ("stride", lambda v: F.conv_transpose2d(resilin.ones(1, 3, 5, 5), WEIGHT, stride=v)),
        ("kernel_size", lambda v: F.unfold(IMAGE, v)),
    ],
)
def test_lengths_that_are_no_integers_are_refused_by_name(name, call, wrong):
    with pytest.raises((TypeError, RuntimeError), match=f"'?{name}'? (must be int|to be one integer)"):
        call(wrong)


@pytest.mark.parametrize("stride", [None, [], ()])
def test_a_pool_without_a_stride_steps_by_its_kernel(stride):
    for pool in (F.max_pool2d, F.avg_pool2d):
        np.testing.assert_array_equal(pool(IMAGE, 2, stride).numpy(), pool(IMAGE, 2, 2).numpy())


@pytest.mark.parametrize("eps", [None, "a", [], 1j, resilin.ones(2)], ids=str)
@pytest.mark.parametrize(
    "norm",
    [
        lambda eps: F.layer_norm(ROWS, (3,), eps=eps),
        lambda eps: F.group_norm(resilin.ones(2, 4, 3), 2, eps=eps),
        lambda eps: F.batch_norm(ROWS, None, None, training=True, eps=eps),
        lambda eps: F.instance_norm(resilin.ones(2, 4, 3), eps=eps),
        lambda eps: F.normalize(ROWS, eps=eps),
        lambda eps: nn.LayerNorm(3, eps=eps)(ROWS),
    ],
)
def test_an_eps_that_is_no_number_is_refused_rather_than_made_nan(norm, eps):
    with pytest.raises(TypeError, match="argument 'eps' must be Number, not"):
        norm(eps)


@pytest.mark.parametrize("eps", [0, -1.0])
def test_batch_norm_divides_by_a_positive_number_in_training(eps):
    layer = nn.BatchNorm1d(3, eps=eps)
    with pytest.raises(ValueError, match="eps must be positive during training"):
        layer(ROWS)
    assert bool(layer.eval()(ROWS + 1).isfinite().all()) == (eps == 0)


@pytest.mark.parametrize("ignored", [None, "a", 1.5, [1]], ids=repr)
@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
def test_the_class_to_ignore_is_an_integer(loss, ignored):
    with pytest.raises(TypeError, match="argument 'ignore_index' must be int"):
        loss(ROWS, CLASSES, ignore_index=ignored)


def test_no_class_of_probabilities_can_be_ignored():
    with pytest.raises(RuntimeError, match="ignore_index=1 is not supported for floating point target"):
        F.cross_entropy(ROWS, ROWS.softmax(1), ignore_index=1)
    assert float(F.cross_entropy(ROWS, ROWS.softmax(1), ignore_index=-5)) > 0


@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
def test_one_row_of_classes_has_one_target(loss):
    with pytest.raises(ValueError, match=r"expected one target for input \(3,\), got \(2,\)"):
        loss(ROWS[0], CLASSES)


@pytest.mark.parametrize("divisor", [2.5, float("nan"), "a"])
def test_the_divisor_of_average_pooling_is_an_integer(divisor):
    with pytest.raises(TypeError, match="'divisor_override' must be int"):
        F.avg_pool2d(IMAGE, 2, divisor_override=divisor)


@pytest.mark.parametrize("table", [resilin.tensor(1.0), resilin.ones(3), resilin.ones(3, 2, 2)])
def test_a_table_of_embeddings_is_a_matrix(table):
    with pytest.raises(RuntimeError, match="must be 2-D, got shape"):
        F.embedding(resilin.tensor([1]), table)
    with pytest.raises(ValueError, match="has to be 2-D, got shape"):
        F.embedding_bag(resilin.tensor([1]), table, resilin.tensor([0]))


def test_a_product_with_a_number_or_a_stack_of_matrices_is_refused():
    with pytest.raises(RuntimeError, match=r"bilinear: expected \(\.\.\., I\)"):
        F.bilinear(resilin.ones(3), resilin.tensor(1.0), resilin.ones(5, 3, 4))
    with pytest.raises(RuntimeError, match=r"linear: weight must be \(out, in\)"):
        F.linear(resilin.ones(2, 3), resilin.ones(2, 3, 3))


@pytest.mark.parametrize("pair", [(-3, -3), (-5, 3), (5, -6)])
def test_no_more_is_cut_off_than_there_is(pair):
    with pytest.raises(RuntimeError, match=r"pad: cannot cut \("):
        F.pad(resilin.ones(1, 2, 4), pair)
    assert F.pad(resilin.ones(1, 2, 4), (-2, -2)).shape == (1, 2, 0)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda q: F.scaled_dot_product_attention(q, q.float(), q), "must have the same dtype"),
        (lambda q: F.scaled_dot_product_attention(q[0, 0], q, q), "need at least 2 dimensions"),
        (lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=1.5), "dropout_p must be between 0 and 1"),
        (lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=-0.5), "dropout_p must be between 0 and 1"),
    ],
)
def test_attention_refuses_operands_that_do_not_go_together(call, said):
    with pytest.raises(RuntimeError, match=said):
        call(resilin.ones(2, 3, 4, dtype=resilin.float64))


@pytest.mark.parametrize("shape", [(1, 0, 2, 2), (0, 4, 2, 2), (2, 4, 0, 2), (2, 4, 2, 0)])
def test_images_without_elements_are_shuffled_to_images_without_elements(shape):
    N, C, H, W = shape
    empty = resilin.empty(shape)
    assert F.pixel_shuffle(empty, 2).shape == (N, C // 4, 2 * H, 2 * W)
    assert F.pixel_unshuffle(empty, 2).shape == (N, 4 * C, H // 2, W // 2)
    assert F.channel_shuffle(empty, 2).shape == shape


def test_random_numbers_of_fractional_pooling_may_be_those_of_a_larger_batch():
    x, samples = resilin.rand(4, 5, 5, 5), resilin.rand(2, 4, 3)
    found = F.fractional_max_pool3d(x, 2, output_ratio=0.5, _random_samples=samples)
    expected = F.fractional_max_pool3d(x, 2, output_ratio=0.5, _random_samples=samples[:1])
    np.testing.assert_array_equal(found.numpy(), expected.numpy())
    for wrong in (samples[:, :3], samples[0], samples.double(), resilin.rand(2, 4, 2)):
        with pytest.raises(RuntimeError, match=r"expected _random_samples of .* and shape \(1, 4, 3\)"):
            F.fractional_max_pool3d(x, 2, output_ratio=0.5, _random_samples=wrong)


@pytest.mark.parametrize("option", [{"bias": "True"}, {"batch_first": 0}, {"bias": None}])
def test_switches_of_recurrent_layers_are_booleans(option):
    with pytest.raises(TypeError, match=f"GRU: {next(iter(option))} must be a bool"):
        nn.GRU(2, 3, **option)


def test_linear_cross_entropy_loss_checks_its_options_when_it_is_made():
    with pytest.raises(ValueError, match=r"expected weight shape to be \(2,\), got \(3,\)"):
        nn.LinearCrossEntropyLoss(3, 2, weight=resilin.ones(3))
    with pytest.raises(ValueError, match="label_smoothing must be between 0 and 1, got 2"):
        nn.LinearCrossEntropyLoss(3, 2, label_smoothing=2.0)
