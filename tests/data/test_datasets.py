"""Data sets that combine others: stacked, concatenated, chained, cut and split."""

import numpy as np
import pytest

import resilin
from resilin.core import rng
from resilin.data import (
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
    random_split,
)
from resilin.data.collate import default_collate_fn_map
from resilin.errors import UsageError


class Count(IterableDataset):
    def __init__(self, start, end):
        self.start, self.end = start, end

    def __iter__(self):
        return iter(range(self.start, self.end))

    def __len__(self):
        return self.end - self.start


class Endless(IterableDataset):
    def __iter__(self):
        return iter(int, 1)


def test_stacked_data_sets_give_tuples_by_place_and_dicts_by_name():
    numbers, letters = [1, 2, 3], "abc"
    assert StackDataset(numbers, letters)[1] == (2, "b")
    assert StackDataset(number=numbers, letter=letters)[-1] == {"number": 3, "letter": "c"}
    assert len(StackDataset(numbers, letters)) == 3


def test_stacked_data_sets_fetch_many_where_a_part_can():
    class Many(Dataset):
        calls = 0

        def __getitem__(self, index):
            raise AssertionError("one by one")

        def __getitems__(self, indices):
            Many.calls += 1
            return [index * 10 for index in indices]

        def __len__(self):
            return 4

    stacked = StackDataset(many=Many(), one="abcd")
    assert stacked.__getitems__([2, 0]) == [{"many": 20, "one": "c"}, {"many": 0, "one": "a"}]
    (batch,) = DataLoader(StackDataset(Many(), range(4)), batch_size=4)
    assert [part.tolist() for part in batch] == [[0, 10, 20, 30], [0, 1, 2, 3]]
    assert Many.calls == 2


def test_a_part_that_gives_too_few_samples_is_named():
    class Short(Dataset):
        def __getitems__(self, indices):
            return [0]

        def __len__(self):
            return 3

    with pytest.raises(UsageError, match="data set 1 gave 1 samples for 2 indices"):
        StackDataset("abc", Short()).__getitems__([0, 1])


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [((), {}, "0 by place and 0 by name"), (([1],), {"a": [1]}, "1 by place"), (([1], [1, 2]), {}, r"\[1, 2\]")],
)
def test_stacking_what_does_not_fit_is_refused(args, kwargs, words):
    with pytest.raises(UsageError, match=words):
        StackDataset(*args, **kwargs)


def test_streams_added_are_chained():
    both = Count(0, 2) + Count(5, 8)
    assert isinstance(both, ChainDataset)
    assert list(both) == [0, 1, 5, 6, 7]
    assert len(both) == 5
    assert [batch.tolist() for batch in DataLoader(both, batch_size=3)] == [[0, 1, 5], [6, 7]]
    with pytest.raises(TypeError, match="Endless"):
        len(Count(0, 2) + Endless())
    with pytest.raises(UsageError, match="data set 1 is a list, expected an IterableDataset"):
        list(ChainDataset([Count(0, 1), [1, 2]]))


def test_concatenated_data_sets_are_counted_from_the_end_too_and_can_be_looped_over():
    both = ConcatDataset([[1, 2], [], [3]])
    assert [both[i] for i in (-3, -2, -1)] == [1, 2, 3]
    assert list(both) == [1, 2, 3]
    assert ConcatDataset.cumsum(["ab", "c"]) == [2, 3] == both.cumulative_sizes[::2]
    with pytest.raises(ValueError, match="index -4 is out of range for 3 samples"):
        both[-4]
    with pytest.raises(UsageError, match="at least one"):
        ConcatDataset([])


def test_a_subset_that_overrides_one_access_must_override_the_other():
    class Half(Subset):
        def __getitem__(self, idx):
            return super().__getitem__(idx) / 2

    with pytest.raises(NotImplementedError, match="Half overrides __getitem__ but not __getitems__"):
        Half([2, 4], [0])

    class Whole(Half):
        def __getitems__(self, indices):
            return [self[index] for index in indices]

    assert [batch.tolist() for batch in DataLoader(Whole([2, 4, 6], [2, 0]), batch_size=2)] == [[3, 1]]


def test_a_list_of_indices_reaches_what_takes_lists():
    subset = Subset(TensorDataset(resilin.arange(10)), [9, 7, 5])
    assert subset[[0, 2]][0].tolist() == [9, 5]


def test_random_split_takes_a_generator_and_repeats():
    def split(seed):
        return [list(part) for part in random_split(range(9), [4, 5], rng.Generator().manual_seed(seed))]

    assert split(3) == split(3) != split(4)


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        ([0.5, 0.25], "length 0"),
        ([11, -1], "length 1"),
        ([2.5, 7.5], "length 0"),
        ([4, 5], "sum to 9"),
        ([1.5, -0.5], "0"),
    ],
)
def test_lengths_that_are_no_split_are_refused(lengths, words):
    with pytest.raises(UsageError, match=words):
        random_split(range(10), lengths)


def test_an_empty_share_is_warned_of_and_a_single_one_is_everything():
    with pytest.warns(UserWarning, match="subset 1 .* is empty"):
        parts = random_split(range(3), [0.9, 0.1])
    assert [len(part) for part in parts] == [3, 0]
    assert len(random_split(range(3), [1])[0]) == 3
    assert [len(part) for part in random_split(range(3), [3, 0])] == [3, 0]


def test_tensor_datasets_need_tensors():
    with pytest.raises(UsageError, match=r"got sizes \[\]"):
        TensorDataset()
    data = TensorDataset(resilin.arange(6).reshape(3, 2), resilin.arange(3))
    assert len(data) == 3
    (batch,) = DataLoader(data, batch_size=3)
    assert batch[0].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert np.array_equal(batch[1].numpy(), [0, 1, 2])


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.multiproc)])
def test_rows_taken_at_once_are_those_collated_one_by_one(num_workers):
    whole = TensorDataset(
        resilin.randn(20, 3), resilin.arange(20), resilin.randn(3, 20).t(), resilin.ones(20, 0), resilin.ones(20) > 0
    )
    for data in (whole, Subset(whole, list(range(19, 0, -2))), Subset(Subset(whole, range(4, 9)), np.array([3, 0, 1]))):
        batches = list(DataLoader(data, batch_size=4, num_workers=num_workers))
        one_by_one = list(DataLoader(data, batch_size=4, collate_fn=lambda samples: default_collate(samples)))
        for batch, expected in zip(batches, one_by_one, strict=True):
            assert type(batch) is list
            for part, other in zip(batch, expected, strict=True):
                assert (part.dtype, part.shape, part.tolist()) == (other.dtype, other.shape, other.tolist())


def test_rows_taken_at_once_are_no_views_and_keep_gradients():
    values = resilin.ones(4, 2, requires_grad=True)
    (batch,) = DataLoader(TensorDataset(values), batch_size=4)
    batch[0].sum().backward()
    assert values.grad.tolist() == [[1, 1]] * 4
    plain = resilin.zeros(4)
    (batch,) = DataLoader(TensorDataset(plain), batch_size=4)
    batch[0].add_(1)
    assert plain.tolist() == [0] * 4


def test_a_changed_collation_of_tensors_counts_for_tensor_datasets_too(monkeypatch):
    data = TensorDataset(resilin.arange(4))
    monkeypatch.setitem(default_collate_fn_map, resilin.Tensor, lambda batch, *, collate_fn_map: len(batch))
    assert list(DataLoader(data, batch_size=3)) == [[3], [1]]


@pytest.mark.parametrize("index", [4, -5])
def test_an_index_outside_of_a_tensor_dataset_is_an_error(index):
    with pytest.raises(IndexError):
        list(DataLoader(TensorDataset(resilin.arange(4)), batch_sampler=[[0, index]]))
