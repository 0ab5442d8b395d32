"""Memory shared with other libraries: DLPack both ways, buffers."""

from __future__ import annotations

import numpy as np
import pytest

import resilin


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int8, np.int64, np.uint16, np.bool_, np.complex64])
def test_dlpack_shares_memory_both_ways(kind: type) -> None:
    x = resilin.from_numpy(np.array([[0, 1, 2], [3, 4, 5]]).astype(kind))
    theirs = np.from_dlpack(x.t())
    assert np.shares_memory(theirs, x.numpy())
    np.testing.assert_array_equal(theirs, x.numpy().T)
    ours = resilin.from_dlpack(x.numpy())
    ours[0, 0] = 1
    assert x[0, 0].item() == 1


def test_dlpack_copies_when_asked_and_takes_capsules() -> None:
    x = resilin.arange(3.0)
    assert not np.shares_memory(resilin.from_dlpack(x, copy=True).numpy(), x.numpy())
    assert np.shares_memory(resilin.from_dlpack(resilin.to_dlpack(x)).numpy(), x.numpy())
    assert "versioned" in repr(x.__dlpack__(max_version=(1, 0)))
    assert x.__dlpack_device__() == (1, 0)


def test_dlpack_refuses_what_it_cannot_express() -> None:
    with pytest.raises(BufferError, match="require gradient"):
        resilin.ones(2, requires_grad=True).__dlpack__()
    with pytest.raises(BufferError, match="bfloat16"):
        resilin.ones(2, dtype=resilin.bfloat16).__dlpack__()
    with pytest.raises(TypeError, match="got int"):
        resilin.from_dlpack(3)


def test_frombuffer_shares_the_buffer_and_checks_its_size() -> None:
    memory = bytearray(np.arange(4, dtype=np.int16).tobytes())
    x = resilin.frombuffer(memory, dtype=resilin.int16, count=2, offset=2)
    x[0] = 7
    assert np.frombuffer(memory, np.int16).tolist() == [0, 7, 2, 3]
    with pytest.raises(ValueError, match="do not fit"):
        resilin.frombuffer(memory, dtype=resilin.int16, count=9)
    with pytest.raises(ValueError, match="no multiple"):
        resilin.frombuffer(memory, dtype=resilin.int16, offset=1)


def test_a_tensor_is_an_array_with_a_dtype_and_a_copy_when_asked() -> None:
    x = resilin.arange(3.0)
    assert np.shares_memory(np.asarray(x), x.numpy())
    assert not np.shares_memory(np.array(x, copy=True), x.numpy())
    assert np.asarray(x, dtype=np.int32).dtype == np.int32
    with pytest.raises(ValueError, match="copy"):
        np.array(x, dtype=np.int32, copy=False)
