"""DataLoader's arguments: which go together, what their attributes are afterwards, and what is warned of."""

import multiprocessing
import os

import numpy as np
import pytest

import resilin
from resilin.data import BatchSampler, DataLoader, IterableDataset, get_worker_info
from resilin.errors import UsageError

pytestmark = pytest.mark.filterwarnings("ignore:DataLoader. num_workers=")


class Count(IterableDataset):
    """0 to 9, all of them in each worker."""

    def __iter__(self):
        return iter(range(10))

    def __len__(self):
        return 10


class Shared(Count):
    """0 to 9, cut among the workers."""

    def __iter__(self):
        info = get_worker_info()
        return iter(range(10)) if info is None else iter(range(info.id, 10, info.num_workers))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"num_workers": 1.5}, TypeError, "num_workers should be an integer, got 1.5"),
        ({"num_workers": 1, "prefetch_factor": "2"}, TypeError, "prefetch_factor should be an integer"),
        ({"timeout": "5"}, TypeError, "timeout should be a number of seconds"),
        ({"timeout": float("nan"), "num_workers": 1}, UsageError, "timeout must not be negative"),
        ({"timeout": 2}, UsageError, "timeout=2 needs num_workers > 0"),
        ({"collate_fn": 3}, TypeError, "collate_fn should be callable, got 3"),
        ({"worker_init_fn": 3, "num_workers": 1}, TypeError, "worker_init_fn should be callable"),
        ({"multiprocessing_context": "fork"}, UsageError, "needs worker processes, got num_workers=0"),
        ({"multiprocessing_context": "no", "num_workers": 1}, UsageError, "should be one of .*'spawn'"),
        ({"multiprocessing_context": 3, "num_workers": 1}, TypeError, "start method's name or a context"),
        ({"worker_method": "fiber"}, UsageError, "worker_method should be one of"),
        ({"worker_method": "thread", "num_workers": 1, "multiprocessing_context": "fork"}, UsageError, "'thread'"),
        ({"batch_sampler": [[1]], "batch_size": 2}, UsageError, "excludes"),
        ({"batch_sampler": [[1]], "sampler": [1]}, UsageError, "excludes"),
        ({"batch_size": 1.5}, UsageError, "positive integer"),
        ({"drop_last": 1}, UsageError, "drop_last should be True or False"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else None,
)
def test_arguments_that_make_no_sense_are_refused_at_the_call(options, error, words):
    with pytest.raises(error, match=words):
        DataLoader([1, 2, 3], **options)


@pytest.mark.parametrize("options", [{"sampler": [1]}, {"batch_sampler": [[1]]}, {"shuffle": True}])
def test_a_stream_takes_neither_sampler_nor_order(options):
    with pytest.raises(UsageError, match="its own order"):
        DataLoader(Count(), **options)
    assert len(list(DataLoader(Count(), shuffle=False, batch_size=5))) == 2


def test_attributes_are_pytorchs():
    loader = DataLoader(range(3), batch_sampler=BatchSampler(range(3), 2, False))
    assert (loader.batch_size, loader.drop_last, loader.prefetch_factor) == (None, False, None)
    assert type(loader.sampler).__name__ == "SequentialSampler"
    assert loader.multiprocessing_context is None
    with_workers = DataLoader(range(3), num_workers=1, multiprocessing_context="spawn")
    assert with_workers.prefetch_factor == 2
    assert with_workers.multiprocessing_context is multiprocessing.get_context("spawn")
    assert DataLoader(range(3), batch_size=None).batch_sampler is None


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_what_the_samplers_were_made_from_cannot_be_changed(name):
    loader = DataLoader(range(3))
    with pytest.raises(ValueError, match=f"{name} cannot be changed"):
        setattr(loader, name, 5)
    loader.num_workers = 0  # others can, as in PyTorch


def test_more_workers_than_cores_are_warned_of():
    with pytest.warns(UserWarning, match=r"num_workers=4096 is more than the \d+ cores") as caught:
        DataLoader(range(3), num_workers=4096)
    assert os.path.samefile(caught[0].filename, __file__)


def test_pinning_without_a_gpu_warns_and_changes_nothing():
    if resilin.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.warns(UserWarning, match="pin_memory=True has no effect") as caught:
        assert [batch.tolist() for batch in DataLoader([1, 2], pin_memory=True)] == [[1], [2]]
    assert os.path.samefile(caught[0].filename, __file__)
    with pytest.warns(UserWarning, match="pin_memory") as caught:
        iter(DataLoader([1, 2], pin_memory=True, pin_memory_device="cuda"))
    assert ["deprecated" in str(warning.message) for warning in caught] == [True, False]


def test_everything_that_can_be_pinned_is_pinned():
    from resilin.data import pinning

    class Packet:
        pinned = False

        def pin_memory(self):
            self.pinned = True
            return self

    batch = pinning.pin({"a": [Packet(), "text", 3], "b": (Packet(), resilin.ones(2))})
    assert (batch["a"][0].pinned, batch["a"][1:], batch["b"][0].pinned) == (True, ["text", 3], True)
    assert type(batch["b"]) is tuple


def test_length_of_a_stream_counts_batches_and_says_when_it_was_wrong():
    assert len(DataLoader(Count(), batch_size=3)) == 4
    assert len(DataLoader(Count(), batch_size=3, drop_last=True)) == 3
    assert len(DataLoader(Count(), batch_size=None)) == 10

    class Liar(Count):
        def __len__(self):
            return 8

    loader = DataLoader(Liar(), batch_size=None)
    assert sum(1 for _ in loader) == 10  # nobody asked for the length
    assert len(loader) == 8
    with pytest.warns(UserWarning, match="length of Liar was said to be 8 .*9 samples have been fetched"):
        assert len(list(loader)) == 10


@pytest.mark.multiproc
def test_a_stream_that_is_not_split_is_warned_of():
    loader = DataLoader(Count(), num_workers=2)
    assert len(loader) == 10
    with pytest.warns(UserWarning, match="split by get_worker_info"):
        assert len(list(loader)) == 20
    split = DataLoader(Shared(), num_workers=2)
    assert len(split) == len(list(split)) == 10


@pytest.mark.multiproc
@pytest.mark.parametrize(
    ("options", "batches"),
    [
        ({"batch_size": 3}, [[0, 2, 4], [1, 3, 5], [6, 8], [7, 9]]),
        ({"batch_size": 3, "drop_last": True}, [[0, 2, 4], [1, 3, 5]]),
        ({"batch_size": None}, list(range(10))),
    ],
)
def test_a_split_stream_comes_in_pytorchs_order(options, batches):
    got = list(DataLoader(Shared(), num_workers=2, **options))
    assert [batch.tolist() if isinstance(batch, resilin.Tensor) else batch for batch in got] == batches


def test_keys_and_arrays_can_be_indices():
    words = {"a": 1, "b": 2}
    assert list(DataLoader(words, sampler=["b", "a"], batch_size=None)) == [2, 1]
    assert [batch.item() for batch in DataLoader(range(10), sampler=np.array([3, 1]))] == [3, 1]
    assert [batch.item() for batch in DataLoader(range(10), sampler=resilin.tensor([3, 1]))] == [3, 1]


def test_a_pass_is_its_own_iterator_has_a_length_and_stays_at_its_end():
    batches = iter(DataLoader(range(5), batch_size=2))
    assert iter(batches) is batches
    assert len(batches) == 3
    assert len(list(batches)) == 3
    assert next(batches, None) is None


def test_an_error_in_process_leaves_the_pass_usable():
    batches = iter(DataLoader([1, None, 3], batch_size=1))
    assert next(batches).item() == 1
    with pytest.raises(TypeError):
        next(batches)
    assert next(batches).item() == 3
    assert next(batches, "end") == "end"
