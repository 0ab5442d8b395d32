"""Hand-over of batches between processes, here between the two ends of one pipe."""

import multiprocessing
import threading

import numpy as np
import pytest
from data_descriptors import descriptors
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import resilin
from resilin.data import messages

arrays = hnp.arrays(
    st.sampled_from([np.float32, np.int64, np.bool_]), hnp.array_shapes(min_dims=0, max_side=40, min_side=0)
)


def hand_over(message):
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        messages.send(ours, message)
        return messages.receive(theirs)


@pytest.mark.slow
@given(parts=st.lists(arrays, max_size=5), text=st.text())
def test_arrays_arrive_as_sent_and_can_be_written(parts, text):
    received, words = hand_over((parts, text))
    assert words == text
    for mine, other in zip(parts, received, strict=True):
        assert (mine.dtype, mine.shape, mine.tobytes()) == (other.dtype, other.shape, other.tobytes())
        other[...] = 1


@pytest.mark.parametrize("size", [1, messages.INLINE_BYTES - 1, messages.INLINE_BYTES, 300_000])
def test_sizes_around_the_limit_arrive_whole(size):
    data = np.arange(size, dtype=np.uint8)
    assert hand_over(data).tobytes() == data.tobytes()
    assert hand_over("x" * size) == "x" * size


def test_tensors_travel_with_dtype_and_strides():
    tensor = resilin.arange(2000).reshape(40, 50).t()
    received = hand_over({"x": tensor, "half": resilin.ones(3000, dtype=resilin.bfloat16)})
    assert received["x"].tolist() == tensor.tolist()
    assert received["half"].dtype is resilin.bfloat16


def test_many_large_messages_do_not_block_the_sender():
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        sender = threading.Thread(
            target=lambda: [messages.send(ours, np.full(100_000, i)) for i in range(40)], daemon=True
        )
        sender.start()
        sender.join(10)
        assert not sender.is_alive()
        assert [messages.receive(theirs)[0] for _ in range(40)] == list(range(40))


def test_no_descriptor_stays_with_a_batch():
    before = descriptors()
    kept = [hand_over(np.zeros(10_000)) for _ in range(20)]
    assert descriptors() == before
    assert len(kept) == 20


def test_a_closed_connection_says_so():
    ours, theirs = multiprocessing.Pipe()
    ours.close()
    with theirs, pytest.raises(EOFError):
        messages.receive(theirs)
