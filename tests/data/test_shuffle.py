"""The order of an epoch: a frozen function of its key."""

import numpy as np

from resilin.data import shuffle


def test_the_order_of_an_epoch_never_changes():
    assert shuffle.permutation(10, seed=1, epoch=2).tolist() == [4, 2, 0, 6, 1, 5, 9, 8, 7, 3]
    assert [shuffle.permutation(length, 0).tolist() for length in (0, 1)] == [[], [0]]
    assert shuffle.permutation(5, seed=-1).dtype == np.int64
