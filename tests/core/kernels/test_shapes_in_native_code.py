"""What only moves elements, in native code: numpy's elements for every width, layout, edge and mode."""

from __future__ import annotations

import numpy as np
import pytest

import resilin
from resilin.nn import functional as F

DTYPES = (np.bool_, np.float16, np.float32, np.int64, np.complex128)
MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
same = np.testing.assert_array_equal


def some(dtype, *shape):
    return (np.random.default_rng(0).standard_normal(shape) * 50).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_every_length_are_turned_and_copied_whole(dtype):
    for n in (*range(1, 40), 63, 64, 65, 300, 17000):
        a = some(dtype, 5, n)
        x = resilin.tensor(a)
        same(x.flip(1).numpy(), a[:, ::-1])
        same(x[:, ::2].flip(0, 1).numpy(), a[::-1, ::2][:, ::-1])
        same(x.roll((2, 1), (0, 1)).numpy(), np.roll(a, (2, 1), (0, 1)))
        same(resilin.rot90(x, 1).numpy(), np.rot90(a))
        same(x.T.rot90(3).numpy(), np.rot90(a.T, 3))
        same(x.rot90(-2).numpy(), np.rot90(a, 2))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
def test_pads_from_inside_show_what_numpy_shows(dtype, mode):
    a = some(dtype, 3, 5, 9)
    x = resilin.tensor(a)
    for before, after in ((0, 0), (4, 3), (1, 0), (0, 8)):
        same(F.pad(x, (before, after), mode=mode).numpy(), np.pad(a, ((0, 0), (0, 0), (before, after)), MODES[mode]))
        wide = np.pad(a, ((0, 0), (2, 1), (before, after)), MODES[mode])
        same(F.pad(x, (before, after, 2, 1), mode=mode).numpy(), wide)
        same(
            F.pad(x.transpose(0, 2), (2, 1), mode=mode).numpy(),
            np.pad(a.swapaxes(0, 2), ((0, 0), (0, 0), (2, 1)), MODES[mode]),
        )
    cut = np.pad(a, ((0, 0), (0, 0), (3, 0)), MODES[mode])[..., : 9 + 3 - 2]
    if mode != "circular":  # which cuts first
        same(F.pad(x, (3, -2), mode=mode).numpy(), cut)
        same(F.pad(x, (3, -11), mode=mode).numpy(), cut[..., :1])


@pytest.mark.parametrize("mode", ["constant", *MODES])
def test_a_pad_is_of_integers(mode):
    x = resilin.ones(2, 4)
    assert F.pad(x, (np.int64(1), np.int32(2)), mode).equal(F.pad(x, (1, 2), mode))
    for wrong in (True, np.True_, 1.0, "1", None):
        with pytest.raises(TypeError, match="expected integers as pad"):
            F.pad(x, (wrong, 1), mode)


def test_the_value_of_a_pad_is_a_float_that_the_dtype_holds():
    bytes_ = resilin.ones(2, dtype=resilin.uint8)
    assert F.pad(bytes_, (1, 0), value=255).tolist() == [255, 1, 1]
    assert F.pad(bytes_, (1, 0), value=True).tolist() == [1, 1, 1]
    assert F.pad(bytes_.to(resilin.int8), (1, 0), value=-128).tolist() == [-128, 1, 1]
    for wrong in (-1, -3.0, 256):
        with pytest.raises(RuntimeError, match=r"cannot be converted to resilin\.uint8 without overflow"):
            F.pad(bytes_, (1, 0), value=wrong)
    with pytest.raises(TypeError, match="expected a real number"):
        F.pad(bytes_, (1, 0), value=1j)


@pytest.mark.parametrize("pad", [(9, 0), (0, 9), (-10, 0), (-9, 0)])
def test_a_pad_that_does_not_fit_is_refused(pad):
    with pytest.raises(RuntimeError, match="pad"):
        F.pad(resilin.zeros(3, 9), pad, mode="reflect")


def test_constants_around_are_of_the_tensors_dtype():
    for dtype in (resilin.float32, resilin.float64, resilin.bfloat16, resilin.int64, resilin.bool):
        x = resilin.ones(2, 3, dtype=dtype)
        for value in (None, 0.0, -0.0, 1.0, 1):
            found = F.pad(x, (1, -1, 0, 2), value=value)
            assert found.dtype == dtype
            assert tuple(found.shape) == (4, 3)
            assert found[0].tolist() == [value or 0, 1, 1]
            assert found[3].tolist() == [value or 0] * 3
    assert np.signbit(F.pad(resilin.ones(1), (1, 0), value=-0.0).numpy()[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_joined_arrays_are_numpys(dtype):
    for shape in ((), (5,), (300,), (4, 7), (40, 3), (2, 3, 5), (3, 0)):
        for count in (1, 2, 3, 5):
            arrays = [some(dtype, *shape) + dtype(i) for i in range(count)]
            tensors = [resilin.tensor(np.asarray(a, dtype)) for a in arrays]
            for axis in range(-len(shape) - 1, len(shape) + 1):
                same(resilin.stack(tensors, axis).numpy(), np.stack(arrays, axis).astype(dtype))
            for axis in range(-len(shape), len(shape)):
                same(resilin.cat(tuple(tensors), axis).numpy(), np.concatenate(arrays, axis).astype(dtype))
    with pytest.raises(IndexError):
        resilin.stack([resilin.zeros(2)], 2)
    with pytest.raises(RuntimeError):
        resilin.stack([resilin.zeros(2), resilin.zeros(3)])


def test_blocks_and_diagonals_have_zeros_around():
    a, row, number, none = resilin.randn(2, 3), resilin.randn(2), resilin.tensor(5.0), resilin.zeros(0, 2)
    made = resilin.block_diag(a, none, row, number).numpy()
    expected = np.zeros((4, 8), np.float32)
    expected[:2, :3], expected[2, 5:7], expected[3, 7] = a.numpy(), row.numpy(), 5
    same(made, expected)
    for dtype in DTYPES:
        v = some(dtype, 7)
        for k in (-3, 0, 2):
            same(resilin.diag(resilin.tensor(v), k).numpy(), np.diag(v, k))
            same(resilin.diag(resilin.tensor(v)[::2], k).numpy(), np.diag(v[::2], k))


def test_windows_are_copies_of_what_a_view_shows():
    a = some(np.float32, 6, 11)
    x = resilin.tensor(a)
    for size, step in ((4, 4), (3, 2), (11, 1), (1, 5), (1, 20)):
        same(x.unfold(1, size, step).numpy(), np.lib.stride_tricks.sliding_window_view(a, size, 1)[:, ::step])
    same(x.unfold(0, 2, 3).numpy(), np.lib.stride_tricks.sliding_window_view(a, 2, 0)[::3])


def test_parts_are_views_that_know_their_base():
    x = resilin.zeros(4, 6)
    parts, slices = x.split([1, 0, 5], 1), x.unbind(0)
    assert [tuple(p.shape) for p in parts] == [(4, 1), (4, 0), (4, 5)]
    assert len(slices) == 4
    before = x._version
    parts[2][1, 0] = 3.0
    slices[2][4] = 7.0
    assert x[1, 1] == 3.0
    assert x[2, 4] == 7.0
    assert x._version == before + 2 == parts[0]._version
    assert parts[2]._base is x
    assert slices[0]._base is x
    assert resilin.arange(3).unbind()[1].shape == ()
    w = resilin.ones(4, requires_grad=True)
    (parts[2][:, 0] * w).sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [0.0, 3.0, 0.0, 0.0]


def test_a_write_into_a_part_reaches_the_graph():
    x, w = resilin.zeros(2, 4), resilin.ones(2, 2, requires_grad=True)
    a, b = x.chunk(2, 1)
    b.copy_(w * 3)
    x.sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert a.requires_grad
    with resilin.no_grad():
        first = w.unbind(0)[0]
    assert not first.requires_grad
    assert w.unbind(0)[0].requires_grad
    with resilin.inference_mode():
        assert resilin.zeros(2, 2).unbind(1)[0].is_inference()


def test_gradients_and_vmap_go_step_by_step():
    x = resilin.randn(3, 4, dtype=resilin.float64, requires_grad=True)
    for f in (
        lambda x: x.flip(1),
        lambda x: x.roll(1, 0),
        lambda x: F.pad(x, (1, 2), mode="reflect"),
        lambda x: F.pad(x, (1, -1)),
        lambda x: resilin.stack((x, x * 2), 1),
        lambda x: resilin.block_diag(x, x),
        lambda x: resilin.diag(x[0]),
        lambda x: x.unfold(1, 2, 1),
        lambda x: x.repeat(2, 1),
        lambda x: x.rot90(),
    ):
        assert resilin.autograd.gradcheck(f, (x,))
    y = resilin.randn(5, 3, 4)
    for f in (lambda x: x.flip(1), lambda x: resilin.cat((x, x)), lambda x: x.unbind(1)[2], lambda x: F.pad(x, (1, 0))):
        assert resilin.equal(resilin.func.vmap(f)(y), resilin.stack([f(part) for part in y]))


def test_what_is_left_out_between_arguments_has_its_default():
    images, grid = resilin.randn(1, 2, 5, 7), resilin.rand(1, 3, 3, 2)
    whole = F.grid_sample(images, grid, "bilinear", "zeros", True)
    assert resilin.equal(F.grid_sample(images, grid, align_corners=True), whole)
    assert F.pad(resilin.ones(2), (1, 0), value=2.0).tolist() == [2, 1, 1]
    x = resilin.arange(6.0).reshape(2, 3)
    assert x.gather(axis=1, index=resilin.tensor([[2], [0]])).tolist() == [[2], [3]]
    with pytest.raises(TypeError, match="dim"):
        resilin.gather(x, index=resilin.tensor([[2], [0]]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_blocks_of_images_go_to_channels_and_back(dtype, lead):
    a = some(dtype, *lead, 12, 6, 4)
    x = resilin.tensor(a)
    shuffled = a.reshape(*lead, 3, 2, 2, 6, 4)
    moved = shuffled.transpose(*range(len(lead)), *(len(lead) + i for i in (0, 3, 1, 4, 2)))
    same(F.pixel_shuffle(x, 2).numpy(), moved.reshape(*lead, 3, 12, 8))
    assert resilin.equal(F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2), x)
    assert resilin.equal(F.pixel_unshuffle(F.pixel_shuffle(x, 2).mT.contiguous().mT, 2), x)
    batch = a.reshape(-1, 12, 6, 4)
    for groups in (1, 3, 12):
        found = F.channel_shuffle(resilin.tensor(batch), groups)
        same(found.numpy(), batch.reshape(-1, groups, 12 // groups, 24).swapaxes(1, 2).reshape(batch.shape))
        found.zero_()
    with pytest.raises(RuntimeError, match="divisible"):
        F.pixel_shuffle(x, 3)
    with pytest.raises(RuntimeError, match="divisible"):
        F.channel_shuffle(resilin.tensor(batch), 5)
