"""testing.make_tensor: PyTorch's ranges, arguments and errors."""

import pytest

import resilin
from resilin.testing import make_tensor

WHOLE = ["uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"]


@pytest.mark.parametrize("name", ["bool", *WHOLE, "float16", "bfloat16", "float32", "float64", "complex64"])
def test_numbers_lie_in_the_range_that_the_dtype_has_by_itself(name):
    dtype = getattr(resilin, name)
    made = make_tensor(40, 50, dtype=dtype, device="cpu")
    assert (made.shape, made.dtype, made.requires_grad) == ((40, 50), dtype, False)
    wide = resilin.view_as_real(made) if dtype.is_complex else made
    low, high = {"bool": (0, 1), **dict.fromkeys(WHOLE, (-9, 9))}.get(name, (-9, 9))
    low = 0 if name.startswith("uint") else low
    assert low <= float(wide.min()) <= low + 0.2
    assert high - 0.2 <= float(wide.max()) <= high


def test_a_range_is_rounded_inwards_for_integers_and_limited_to_the_dtype():
    made = make_tensor((400,), dtype=resilin.int64, device="cpu", low=0.5, high=2.5)
    assert set(made.tolist()) == {1, 2}
    assert make_tensor(300, dtype=resilin.uint8, device="cpu", low=-5, high=1).unique().tolist() == [0]
    most = make_tensor(200, dtype=resilin.float32, device="cpu", low=-1e60, high=1e60)
    assert bool(most.isfinite().all())
    assert float(most.abs().max()) > 1e38


def test_layout_zeros_and_gradients_are_as_asked():
    apart = make_tensor(3, 4, dtype=resilin.float32, device="cpu", noncontiguous=True)
    assert (apart.shape, apart.stride()) == ((3, 4), (8, 2))
    assert make_tensor(1, dtype=resilin.float32, device="cpu", noncontiguous=True).is_contiguous()
    image = make_tensor(2, 3, 4, 4, dtype=resilin.float32, device="cpu", memory_format=resilin.channels_last)
    assert image.is_contiguous(memory_format=resilin.channels_last)
    assert make_tensor(
        (500,), dtype=resilin.int8, device="cpu", low=0, high=2, exclude_zero=True
    ).unique().tolist() == [1]
    assert make_tensor((), dtype=resilin.float64, device="cpu", requires_grad=True).requires_grad
    assert make_tensor(2, dtype=resilin.float32, device="meta").device.type == "meta"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"low": 2, "high": 1}, "must be less than"),
        ({"low": float("nan")}, "cannot be NaN"),
        ({"low": 300, "high": 400, "dtype": resilin.uint8}, "only supports"),
        ({"requires_grad": True, "dtype": resilin.int64}, "not supported for boolean and integral"),
        ({"noncontiguous": True, "memory_format": resilin.channels_last}, "mutually exclusive"),
    ],
)
def test_what_pytorch_refuses_is_refused(options, text):
    with pytest.raises(ValueError, match=text):
        make_tensor(2, 3, **{"dtype": resilin.float32, "device": "cpu", **options})


def test_equal_bounds_warn():
    with pytest.warns(FutureWarning, match="low==high"):
        made = make_tensor(2, dtype=resilin.float32, device="cpu", low=1.0, high=1.0)
    assert made.tolist() == [1.0, 1.0]
