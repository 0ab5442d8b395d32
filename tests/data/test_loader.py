"""DataLoader in process and with a prefetching thread; collation."""

import threading
from collections import namedtuple

import numpy as np
import pytest

import resilin
from resilin.core import rng
from resilin.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
    random_split,
)
from resilin.errors import UsageError

Point = namedtuple("Point", "x y")


class Squares(Dataset):
    def __init__(self, length):
        self.length = length

    def __getitem__(self, index):
        if not 0 <= index < self.length:
            raise IndexError(index)
        return index, np.float32(index * index)

    def __len__(self):
        return self.length


class Stream(IterableDataset):
    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(range(self.length))


def as_lists(loader):
    return [batch.tolist() for batch in loader]


def test_batches_are_stacked_with_pytorchs_dtypes():
    batch = default_collate([(1, 2.5, True, np.float32(3), "a"), (4, 5.5, False, np.float32(6), "b")])
    numbers, floats, flags, arrays, words = batch
    assert [t.dtype for t in (numbers, floats, flags, arrays)] == [
        resilin.int64,
        resilin.float64,
        resilin.bool,
        resilin.float32,
    ]
    assert (numbers.tolist(), floats.tolist(), flags.tolist(), arrays.tolist()) == (
        [1, 4],
        [2.5, 5.5],
        [True, False],
        [3, 6],
    )
    assert list(words) == ["a", "b"]


@pytest.mark.parametrize(
    ("batch", "values", "dtype"),
    [
        ([1, 2.5], [1.0, 2.5], resilin.float32),
        ([True, 2], [1, 2], resilin.int64),
        ([True, 2.5], [1.0, 2.5], resilin.float32),
        ([1, True], [1, 1], resilin.int64),
        ([2.5, 1], [2.5, 1.0], resilin.float64),
        ([True, False], [True, False], resilin.bool),
        ([1, 1j], [1 + 0j, 1j], resilin.complex64),
    ],
)
def test_python_numbers_of_several_types_become_one_dtype_that_holds_them_as_in_pytorch(batch, values, dtype):
    collated = default_collate(batch)
    assert collated.dtype is dtype
    assert collated.tolist() == values


@pytest.mark.parametrize("batch", [[2.5, None], [1, "a"], [True, None], [resilin.ones(()), 2.5]])
def test_numbers_beside_what_is_no_number_are_refused(batch):
    with pytest.raises(TypeError):
        default_collate(batch)


def test_nested_structures_are_collated_by_key_place_and_field():
    sample = {"p": Point(1, [2, resilin.ones(2)])}
    batch = default_collate([sample, sample])
    assert isinstance(batch["p"], Point)
    assert batch["p"].x.tolist() == [1, 1]
    assert batch["p"].y[1].tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize(
    ("batch", "error", "words"),
    [
        ([resilin.ones(2), resilin.ones(3)], UsageError, "equal shapes"),
        ([[1], [1, 2]], UsageError, "equally many parts"),
        ([object()], TypeError, "found object"),
        ([np.array(["a"])], TypeError, "collate_fn"),
    ],
    ids=["shapes", "lengths", "type", "strings"],
)
def test_samples_that_do_not_fit_together_are_refused(batch, error, words):
    with pytest.raises(error, match=words):
        default_collate(batch)


def test_default_convert_turns_arrays_into_tensors_and_leaves_the_rest():
    converted = default_convert({"a": np.ones(2), "b": "text", "c": (1, np.int64(2))})
    assert converted["a"].tolist() == [1, 1]
    assert converted["b"] == "text"
    assert converted["c"][1].item() == 2


def test_loader_cuts_a_data_set_into_batches():
    loader = DataLoader(Squares(5), batch_size=2)
    batches = [(index.tolist(), square.tolist()) for index, square in loader]
    assert batches == [([0, 1], [0, 1]), ([2, 3], [4, 9]), ([4], [16])]
    assert len(loader) == 3
    assert len(DataLoader(Squares(5), batch_size=2, drop_last=True)) == 2


def test_without_batching_samples_come_one_by_one():
    assert [square.item() for _, square in DataLoader(Squares(3), batch_size=None)] == [0, 1, 4]


def test_shuffling_repeats_with_the_seed_and_covers_everything():
    data = TensorDataset(resilin.arange(20))
    loader = DataLoader(data, batch_size=5, shuffle=True)
    rng.manual_seed(3)
    first = [batch[0].tolist() for batch in loader]
    second = [batch[0].tolist() for batch in loader]
    rng.manual_seed(3)
    assert [batch[0].tolist() for batch in loader] == first
    assert first != second
    assert sorted(index for batch in first for index in batch) == list(range(20))


def test_a_stream_is_cut_into_batches_too():
    assert as_lists(DataLoader(Stream(5), batch_size=2)) == [[0, 1], [2, 3], [4]]
    assert as_lists(DataLoader(Stream(5), batch_size=2, drop_last=True)) == [[0, 1], [2, 3]]
    assert list(DataLoader(Stream(3), batch_size=None)) == [0, 1, 2]
    with pytest.raises(TypeError, match="Stream"):
        len(DataLoader(Stream(5)))


def test_a_batch_sampler_gives_the_indices():
    loader = DataLoader(range(10), batch_sampler=[[3, 1], [9]])
    assert as_lists(loader) == [[3, 1], [9]]
    assert len(loader) == 2


def test_getitems_fetches_a_whole_batch_in_one_call():
    calls = []

    class Many(Squares):
        def __getitems__(self, indices):
            calls.append(indices)
            return [self[i] for i in indices]

    assert len(list(DataLoader(Many(4), batch_size=2))) == 2
    assert calls == [[0, 1], [2, 3]]
    assert len(list(DataLoader(Subset(Many(4), [3, 2]), batch_size=2))) == 1
    assert calls[-1] == [3, 2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_workers": -1}, "num_workers"),
        ({"timeout": -1}, "timeout"),
        ({"prefetch_factor": 0}, "prefetch_factor"),
        ({"persistent_workers": True}, "persistent_workers needs"),
        ({"shuffle": True, "sampler": [1]}, "not both"),
        ({"batch_sampler": [[1]], "drop_last": True}, "excludes"),
        ({"batch_size": None, "drop_last": True}, "drop_last needs"),
        ({"batch_size": 0}, "positive integer"),
    ],
)
def test_options_that_contradict_are_refused(options, words):
    with pytest.raises(UsageError, match=words):
        DataLoader(Squares(3), **options)


def test_a_stream_takes_no_order():
    with pytest.raises(UsageError, match="its own order"):
        DataLoader(Stream(3), shuffle=True)


def data_threads():
    return [thread for thread in threading.enumerate() if "data-prefetch" in thread.name]


def test_a_thread_fetches_ahead_in_order():
    loader = DataLoader(Squares(20), batch_size=3, prefetch_factor=4)
    assert [index.tolist() for index, _ in loader] == [
        index.tolist() for index, _ in DataLoader(Squares(20), batch_size=3)
    ]
    assert data_threads() == []


def test_the_prefetching_thread_stays_at_most_the_factor_ahead():
    fetched = []

    class Counted(Squares):
        def __getitem__(self, index):
            fetched.append(index)
            return index

    iterator = iter(DataLoader(Counted(100), batch_size=1, prefetch_factor=3))
    next(iterator)
    next(iterator)
    del iterator
    assert len(fetched) <= 2 + 3
    assert data_threads() == []


def test_an_error_in_the_prefetching_thread_comes_out_in_its_turn():
    class Broken(Squares):
        def __getitem__(self, index):
            if index == 2:
                raise KeyError("sample 2 is broken")
            return index

    seen = []
    batches = iter(DataLoader(Broken(9), prefetch_factor=4))
    seen += [next(batches).item(), next(batches).item()]
    with pytest.raises(KeyError, match="sample 2 is broken"):
        next(batches)
    assert seen + [batch.item() for batch in batches] == [0, 1, 3, 4, 5, 6, 7, 8]  # as in PyTorch, it goes on
    assert data_threads() == []


@pytest.mark.parametrize("prefetch_factor", [None, 2])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_sample_that_raises_stop_iteration_is_an_error_and_no_end(prefetch_factor, batch_size):
    class Early(Squares):
        def __getitem__(self, index):
            return next(iter([index] if index < 2 else []))

    with pytest.raises(RuntimeError, match="raised StopIteration") as caught:
        list(DataLoader(Early(6), batch_size=batch_size, prefetch_factor=prefetch_factor))
    assert isinstance(caught.value.__cause__, StopIteration)
    assert data_threads() == []


def test_a_stream_ends_in_the_prefetching_thread_too():
    assert as_lists(DataLoader(Stream(5), batch_size=2, prefetch_factor=2)) == [[0, 1], [2, 3], [4]]


def test_random_split_is_disjoint_and_complete():
    rng.manual_seed(0)
    parts = random_split(range(10), [0.5, 0.3, 0.2])
    assert [len(part) for part in parts] == [5, 3, 2]
    assert sorted(sample for part in parts for sample in part) == list(range(10))
    assert [len(part) for part in random_split(range(10), [1 / 3, 1 / 3, 1 / 3])] == [4, 3, 3]
    with pytest.raises(UsageError, match="sum to 9"):
        random_split(range(10), [4, 5])


def test_concatenated_data_sets_are_one():
    both = Squares(2) + Squares(3)
    assert len(both) == 5
    assert [both[i][0] for i in (0, 1, 2, 4, -1)] == [0, 1, 0, 2, 2]
    with pytest.raises(IndexError):
        both[5]
    with pytest.raises(UsageError, match="no length"):
        ConcatDataset([Stream(2)])


def test_tensor_dataset_needs_equal_lengths():
    data = TensorDataset(resilin.arange(3), resilin.ones(3, 2))
    assert [part.tolist() for part in data[1]] == [1, [1, 1]]
    with pytest.raises(UsageError, match=r"\[3, 4\]"):
        TensorDataset(resilin.arange(3), resilin.arange(4))


@pytest.mark.parametrize("of", [resilin.tensor, np.array, tuple])
def test_a_batch_sampler_may_give_tensors_arrays_or_tuples_of_indices(of):
    whole = TensorDataset(resilin.arange(4))
    batches = [of([3, 1]), of([0, 2])]
    assert [batch[0].tolist() for batch in DataLoader(whole, batch_sampler=batches)] == [[3, 1], [0, 2]]
    part = Subset(whole, [3, 2, 1, 0])
    assert [batch[0].tolist() for batch in DataLoader(part, batch_sampler=batches)] == [[0, 2], [3, 1]]
