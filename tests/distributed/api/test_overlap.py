"""When inputs of a collective must be copied because its outputs lie in them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from resilin.distributed.backends.base import clobbers

PIECES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)), min_size=1, max_size=6)


@given(PIECES, PIECES, st.data())
def test_clobbers_says_what_comparing_all_pairs_says(inputs, outputs, data):
    memory = np.zeros(48, np.float32)
    sources = [memory[start : start + size] for start, size in inputs]
    targets = [memory[start : start + size] for start, size in outputs]
    own = data.draw(st.integers(0, len(inputs) - 1))
    place = data.draw(st.integers(0, len(outputs) - 1))
    in_place = inputs[own] == outputs[place]
    others = [source for i, source in enumerate(sources) if not (in_place and i == own)]
    naive = any(np.may_share_memory(a, b) for a in others for b in targets if a.size and b.size)
    assert clobbers(sources, targets, own, targets[place]) == naive


def test_an_input_that_is_its_own_part_of_the_output_is_not_copied():
    whole = np.zeros((4, 100), np.float32)
    assert not clobbers([whole[2]], list(whole), 0, whole[2])  # all_gather_into_tensor(whole, whole[rank])
    assert not clobbers(list(whole), [whole[2]], 2, whole[2])  # reduce_scatter_tensor(whole[rank], whole)
    assert clobbers([whole[1]], list(whole), 0, whole[2])
    assert clobbers(list(whole), [whole[1]], 2, whole[1])
