"""Interpolation and sampling on grids: derivatives, edges and mistakes. Their numbers: test_windows_equal_torch.py."""

import math

import numpy as np
import pytest

import resilin
from resilin import nn
from resilin.autograd import gradcheck, gradgradcheck
from resilin.nn import functional as F

MODES = [
    ((5,), "linear", {}),
    ((3, 4), "nearest", {}),
    ((3, 4), "bilinear", {"align_corners": True}),
    ((3, 4), "bicubic", {}),
    ((5, 3), "bicubic", {"antialias": True}),
    ((2, 3, 2), "trilinear", {}),
]


def image(*shape):
    resilin.manual_seed(3)
    return resilin.randn(*shape, dtype=resilin.float64, requires_grad=True)


@pytest.mark.parametrize(("lengths", "mode", "options"), MODES)
def test_interpolation_has_exact_derivatives_of_both_orders(lengths, mode, options):
    x = image(1, 2, *lengths)
    resized = lambda x: F.interpolate(x, scale_factor=1.6, mode=mode, **options)  # noqa: E731
    assert gradcheck(resized, x)
    assert gradgradcheck(resized, x)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
def test_sampling_has_exact_derivatives_of_image_and_grid(mode, padding_mode):
    grid = image(1, 2, 3, 2)
    sample = lambda x, g: F.grid_sample(x, g, mode, padding_mode)  # noqa: E731
    assert gradcheck(sample, (image(1, 2, 4, 3), grid))
    assert gradgradcheck(sample, (image(1, 2, 4, 3), grid))


def test_a_grid_of_the_identity_gives_the_image_back():
    x = image(2, 3, 4, 5)
    grid = F.affine_grid(resilin.eye(2, 3, dtype=resilin.float64).repeat(2, 1, 1), x.shape, align_corners=True)
    for mode in ("bilinear", "nearest", "bicubic"):
        assert resilin.allclose(F.grid_sample(x, grid, mode, align_corners=True), x)


def test_a_place_that_is_not_a_number_reads_outside_the_image():
    x = resilin.arange(1.0, 5.0).reshape(1, 1, 2, 2)
    nowhere = resilin.full((1, 1, 1, 2), math.nan)
    assert math.isnan(F.grid_sample(x, nowhere).item())
    assert F.grid_sample(x, nowhere, "nearest").item() == 0
    assert F.grid_sample(x, nowhere, padding_mode="border").item() == 1
    assert F.grid_sample(x, nowhere * math.inf, padding_mode="reflection").item() == 1


def test_an_infinite_element_does_not_reach_beyond_its_neighbours():
    x = resilin.zeros(1, 1, 2, 6)
    x[..., 0] = math.inf
    y = F.interpolate(x, size=(3, 9), mode="bilinear")
    assert y[..., 4:].isfinite().all()
    assert F.grid_sample(x, resilin.full((1, 1, 1, 2), 0.9)).isfinite().all()
    g = resilin.zeros_like(x, requires_grad=True)
    F.interpolate(g, size=(2, 2)).backward(resilin.full((1, 1, 2, 2), math.nan))
    assert g.grad.isnan().sum() == 4


@pytest.mark.parametrize("dtype", [resilin.float16, resilin.bfloat16])
def test_sixteen_bit_images_keep_their_dtype(dtype):
    x = resilin.linspace(0, 1, 12).reshape(1, 1, 3, 4)
    for mode in ("nearest", "bilinear", "bicubic", "area"):
        y = F.interpolate(x.to(dtype), size=(4, 6), mode=mode)
        assert y.dtype is dtype
        assert resilin.allclose(y.float(), F.interpolate(x, size=(4, 6), mode=mode), atol=0.02)


def test_nearest_takes_integers_and_other_modes_say_that_they_do_not():
    x = resilin.arange(4).reshape(1, 1, 2, 2)
    assert F.interpolate(x, scale_factor=2)[0, 0, 0].tolist() == [0, 0, 1, 1]
    with pytest.raises(NotImplementedError, match="floating point"):
        F.interpolate(x, scale_factor=2, mode="bilinear")


def test_the_same_size_gives_a_copy():
    x = resilin.ones(1, 1, 2, 2)
    for of in (x, x.requires_grad_() * 1):
        F.interpolate(of, size=2).zero_()
        F.interpolate(of, size=2, mode="bilinear").zero_()
        assert of.sum() == 4


def test_empty_batches_stay_empty():
    assert F.interpolate(resilin.ones(0, 2, 3, 3), size=5, mode="bilinear").shape == (0, 2, 5, 5)
    assert F.grid_sample(resilin.ones(0, 2, 3, 3), resilin.ones(0, 1, 4, 2)).shape == (0, 2, 1, 4)
    assert F.unfold(resilin.ones(0, 2, 3, 3), 2).shape == (0, 8, 4)
    assert F.fold(resilin.ones(0, 8, 4), 3, 2).shape == (0, 2, 3, 3)
    assert F.grid_sample(resilin.ones(1, 2, 3, 3), resilin.ones(1, 0, 4, 2)).shape == (1, 2, 0, 4)


def test_the_former_names_are_interpolate():
    x = image(1, 1, 3, 4)
    assert resilin.equal(F.upsample(x, scale_factor=2), F.interpolate(x, scale_factor=2))
    assert resilin.equal(F.upsample_nearest(x, size=5), F.interpolate(x, size=5))
    expected = F.interpolate(x, size=5, mode="bilinear", align_corners=True)
    assert resilin.equal(F.upsample_bilinear(x, size=5), expected)
    assert resilin.equal(nn.UpsamplingBilinear2d(size=5)(x), expected)


IMAGE = resilin.ones(1, 2, 5, 4)
RESIZES = [
    (ValueError, "either size or scale_factor", IMAGE, {}),
    (ValueError, "only one of size or scale_factor", IMAGE, {"size": 3, "scale_factor": 2}),
    (ValueError, "number of spatial dimensions", IMAGE, {"size": (3,)}),
    (ValueError, "number of spatial dimensions", IMAGE, {"scale_factor": (3.0, 1.0, 1.0)}),
    (NotImplementedError, "linear mode needs 3D", IMAGE, {"size": 3, "mode": "linear"}),
    (NotImplementedError, "'cubic'", IMAGE, {"size": 3, "mode": "cubic"}),
    (NotImplementedError, "got 2D", IMAGE[0, 0], {"size": 3}),
    (ValueError, "align_corners option", IMAGE, {"size": 3, "align_corners": False}),
    (ValueError, "antialias is restricted", IMAGE, {"size": 3, "antialias": True}),
    (ValueError, "lanczos mode requires antialias", IMAGE, {"size": 3, "mode": "lanczos"}),
    (ValueError, "recompute_scale_factor", IMAGE, {"size": 3, "recompute_scale_factor": True}),
    (RuntimeError, "greater than 0", IMAGE, {"size": (0, 2)}),
    (RuntimeError, "greater than 0", IMAGE, {"scale_factor": -1.0}),
    (RuntimeError, "greater than 0", IMAGE[:, :, :0], {"size": 2}),
    (RuntimeError, "Non-empty", IMAGE[:, :0], {"size": 2}),
    (TypeError, "integers", IMAGE, {"size": 2.5}),
    (TypeError, "Tensor", [1.0], {"size": 2}),
]


@pytest.mark.parametrize(("error", "words", "x", "options"), RESIZES)
def test_interpolate_says_what_cannot_be(error, words, x, options):
    with pytest.raises(error, match=words):
        F.interpolate(x, **options)


GRID = resilin.zeros(1, 2, 2, 2)
SAMPLINGS = [
    (ValueError, "'cubic'", IMAGE, GRID, {"mode": "cubic"}),
    (ValueError, "'mirror'", IMAGE, GRID, {"padding_mode": "mirror"}),
    (RuntimeError, "batch size", IMAGE, GRID.repeat(2, 1, 1, 1), {}),
    (RuntimeError, "size 2 in its last dimension", IMAGE, resilin.zeros(1, 2, 2, 3), {}),
    (RuntimeError, "as many dimensions", IMAGE, GRID[0], {}),
    (RuntimeError, "non-empty spatial", IMAGE[:, :, :0], GRID, {}),
    (RuntimeError, "one dtype", IMAGE, GRID.double(), {}),
    (NotImplementedError, "floating point", IMAGE.long(), GRID.long(), {}),
    (NotImplementedError, "4D input", resilin.ones(1, 1, 2, 2, 2), resilin.zeros(1, 1, 1, 1, 3), {"mode": "bicubic"}),
]


@pytest.mark.parametrize(("error", "words", "x", "grid", "options"), SAMPLINGS)
def test_grid_sample_says_what_cannot_be(error, words, x, grid, options):
    with pytest.raises(error, match=words):
        F.grid_sample(x, grid, **options)


MAPS = [
    (NotImplementedError, "4D and 5D", resilin.zeros(2, 2, 3), (2, 1, 2)),
    (ValueError, "shape \\(N, 3, 4\\)", resilin.zeros(2, 2, 3), (2, 1, 2, 2, 2)),
    (ValueError, "positive output size", resilin.zeros(2, 2, 3), (2, 1, 0, 2)),
    (ValueError, "floating point", resilin.zeros(2, 2, 3).long(), (2, 1, 2, 2)),
    (RuntimeError, "each of 3 images", resilin.zeros(2, 2, 3), (3, 1, 2, 2)),
]


@pytest.mark.parametrize(("error", "words", "theta", "size"), MAPS)
def test_affine_grid_says_what_cannot_be(error, words, theta, size):
    with pytest.raises(error, match=words):
        F.affine_grid(theta, size)


def test_normalization_across_maps_sums_the_channels_that_pytorch_sums():
    x = resilin.arange(1.0, 7.0).reshape(1, 6, 1, 1)
    layer = nn.CrossMapLRN2d(4, alpha=0.5, k=2)
    assert repr(layer) == "CrossMapLRN2d(4, alpha=0.5, beta=0.75, k=2)"
    recorded = [0.48490092, 0.7421754, 0.80792373, 0.8124963, 0.78784651, 1.08742118]  # PyTorch 2.13
    np.testing.assert_allclose(layer(x).flatten().numpy(), recorded, rtol=1e-6)
    with pytest.raises(ValueError, match="4D"):
        layer(x[0])


def test_integers_are_pooled_beside_padding_below_all_of_them():
    x = resilin.arange(-6, 0, dtype=resilin.int8).reshape(1, 1, 6)
    assert F.max_pool1d(x, 2, 2, 1).tolist() == [[[-6, -4, -2, -1]]]
    assert F.max_pool1d(x.to(resilin.int64), 2, 2, 1).tolist() == [[[-6, -4, -2, -1]]]


@pytest.mark.parametrize(  # positions of PyTorch, but those that it has beyond the image
    ("pool", "sizes", "window", "expected"),
    [
        (F.max_pool2d, (5, 2), ((2, 2), 1, (0, 1), 3), [2, 4]),
        (F.max_pool2d, (2, 2), (2, 1, 1, 3), [3]),
        (F.max_pool1d, (2,), (2, 1, 1, 3), [1]),
        (F.max_pool3d, (2, 2, 2), (2, 1, 1, 3), [7]),
    ],
)
@pytest.mark.parametrize("dtype", [resilin.float32, resilin.float64, resilin.float16])
def test_the_position_of_nothing_but_padding_is_in_the_image(pool, sizes, window, expected, dtype):
    x = image(1, 1, *sizes).to(dtype)
    y, index = pool(x, *window, return_indices=True)
    assert y.isneginf().all()
    assert index.flatten().tolist() == expected


def test_a_window_of_nothing_but_padding_has_no_gradient():
    x = image(1, 2, 2, 1, 5)
    y, index = F.max_pool3d(x, 2, 1, 1, (1, 2, 1), return_indices=True)
    assert y.isneginf().all()
    assert index.min() >= 0
    assert index.max() < 10
    y.backward(resilin.ones_like(y))
    assert not x.grad.any()
    x = image(1, 1, 1, 3)
    ones = resilin.ones(1, 1, 1, 3, dtype=resilin.float64, requires_grad=True)
    (dx,) = resilin.autograd.grad(F.max_pool2d(x, 2, 1, 1, 2), x, ones, create_graph=True)
    assert not resilin.autograd.grad(dx.sum(), ones)[0].any()


@pytest.mark.parametrize(  # values of PyTorch, to the bit
    ("mode", "antialias", "align_corners", "size", "expected"),
    [
        ("nearest", False, None, (2, 3), [[0, 255, 3], [17, 90, 255]]),
        ("bilinear", False, False, (2, 3), [[39, 140, 189], [88, 73, 74]]),
        ("bilinear", False, True, (5, 2), [[0, 200], [9, 228], [17, 255], [73, 128], [128, 0]]),
        ("bilinear", True, False, (2, 2), [[100, 164], [72, 107]]),
        (
            "bicubic",
            False,
            False,
            (4, 5),
            [[0, 224, 131, 14, 209], [0, 112, 179, 195, 255], [59, 25, 132, 211, 168], [145, 26, 24, 50, 0]],
        ),
        (
            "bicubic",
            False,
            True,
            (3, 7),
            [[0, 151, 255, 134, 3, 78, 200], [17, 38, 90, 179, 255, 255, 255], [128, 57, 1, 34, 77, 46, 0]],
        ),
        ("bicubic", True, False, (2, 3), [[57, 152, 188], [67, 87, 109]]),
        ("lanczos", True, None, (2, 6), [[0, 103, 207, 110, 156, 252], [99, 44, 32, 143, 130, 88]]),
    ],
)
def test_images_of_bytes_are_resampled_as_pytorch_rounds_them(mode, antialias, align_corners, size, expected):
    rows = [[0, 255, 3, 200], [17, 90, 255, 255], [128, 1, 77, 0]]
    x = resilin.tensor([rows, rows], dtype=resilin.uint8).reshape(1, 2, 3, 4)
    y = F.interpolate(x, size=size, mode=mode, antialias=antialias, align_corners=align_corners)
    assert y.dtype == resilin.uint8
    assert y[0].tolist() == [expected, expected]


def test_images_of_bytes_of_the_same_size_are_copied():
    x = resilin.arange(12, dtype=resilin.uint8).reshape(1, 1, 3, 4)
    for mode in ("bilinear", "bicubic"):
        y = F.interpolate(x, scale_factor=1.2, mode=mode)
        assert y.shape == (1, 1, 3, 4)
        assert y.equal(x)
        assert y.data_ptr() != x.data_ptr()
    for mode, shape in (("linear", (1, 1, 12)), ("trilinear", (1, 1, 3, 2, 2)), ("area", (1, 1, 3, 4))):
        with pytest.raises(NotImplementedError):  # nor has PyTorch them
            F.interpolate(x.reshape(shape), scale_factor=2, mode=mode)
    with pytest.raises(NotImplementedError, match="floating point"):
        F.interpolate(x.to(resilin.int16), scale_factor=2, mode="bilinear")
