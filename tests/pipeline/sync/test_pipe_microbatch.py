"""Batches are cut and joined as PyTorch's are."""

import pytest

import resilin as torch
from resilin.pipeline.sync.microbatch import BatchValues, NoChunk, check, gather, scatter, shares_gradients

CPU = torch.device("cpu")


def test_a_batch_of_one_tensor_is_atomic():
    x = torch.tensor(42)
    batch = BatchValues(x)
    assert batch.atomic
    assert batch.tensor is x
    assert batch.values is x
    assert list(batch) == [x]
    assert (len(batch), batch[0] is x) == (1, True)


def test_a_batch_of_several_values_is_not_atomic():
    x, y = torch.tensor(42), torch.tensor(21)
    batch = BatchValues((x, y))
    assert not batch.atomic
    with pytest.raises(AttributeError, match="not atomic batch"):
        batch.tensor  # noqa: B018
    assert batch.values == [x, y]
    assert [each is value for each, value in zip(batch, (x, y), strict=True)] == [True, True]
    assert (len(batch), batch[1] is y) == (2, True)


def test_a_batch_is_called_and_mapped_value_by_value():
    x = torch.ones(2)
    assert BatchValues(x).call(lambda a: a + 1).tensor.tolist() == [2.0, 2.0]
    assert BatchValues([x, 3]).call(lambda a, b: (a * b, b)).values[1] == 3
    assert BatchValues([x, 3]).map(lambda value: value * 2).values[1] == 6
    assert BatchValues(x).map(lambda value: value * 2).atomic


def test_a_batch_shows_its_values():
    assert repr(BatchValues(torch.tensor(42))) == "BatchValues[atomic=True](tensor(42))"
    assert repr(BatchValues([torch.tensor(42), 1])) == "BatchValues[atomic=False]([tensor(42), 1])"


def test_inputs_are_checked():
    check(CPU, torch.tensor(42))
    check(CPU, torch.tensor(4), torch.tensor(2), "text")
    with pytest.raises(TypeError, match="inputs do not have any tensors"):
        check(CPU, 42)
    with pytest.raises(TypeError, match="inputs do not have any tensors"):
        check(CPU, "str", NoChunk(torch.tensor(1)))
    with pytest.raises(ValueError, match="same device as the first partition"):
        check(torch.device("sim:1"), torch.tensor(1).to("sim:0"))


@pytest.mark.parametrize(
    ("size", "chunks", "sizes"), [(4, 2, [2, 2]), (5, 2, [3, 2]), (1, 2, [1]), (7, 4, [2, 2, 2, 1])]
)
def test_one_tensor_is_cut_along_its_first_dimension(size, chunks, sizes):
    x = torch.arange(size)
    batches = scatter(x, chunks=chunks)
    assert all(batch.atomic for batch in batches)
    assert [len(batch.tensor) for batch in batches] == sizes
    assert torch.equal(gather(batches), x)


def test_several_tensors_are_cut_alike():
    a, b = torch.arange(2), torch.arange(4).reshape(2, 2)
    batches = scatter(a, b, chunks=2)
    assert [[value.tolist() for value in batch] for batch in batches] == [[[0], [[0, 1]]], [[1], [[2, 3]]]]
    joined = gather(batches)
    assert type(joined) is tuple
    assert torch.equal(joined[0], a)
    assert torch.equal(joined[1], b)


def test_other_values_are_in_each_micro_batch():
    whole = torch.arange(3)
    batches = scatter(torch.arange(2), NoChunk(whole), [1, 2], chunks=2)
    assert [batch[1] is whole for batch in batches] == [True, True]
    x, masks, lists = gather(batches)
    assert torch.equal(x, torch.arange(2))
    assert torch.equal(masks, torch.cat([whole, whole]))
    assert lists == [[1, 2], [1, 2]]


def test_a_smaller_batch_gives_fewer_micro_batches():
    assert len(scatter(torch.ones(2), 1, chunks=4)) == 2


def test_outputs_must_be_alike():
    with pytest.raises(TypeError, match=r"Types for microbatch outputs do not match, found: Tensor of .* and \(Tensor"):
        gather([BatchValues(torch.ones(1)), BatchValues([torch.ones(1)])])
    with pytest.raises(TypeError, match="do not match"):
        gather([BatchValues([torch.ones(1), 1]), BatchValues([torch.ones(1)])])


def test_whole_tensors_that_require_gradients_are_found():
    cut, whole = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    assert not shares_gradients(cut, NoChunk(torch.ones(2)), [torch.ones(2)], {"a": 1})
    assert shares_gradients(cut, NoChunk(whole))
    assert shares_gradients(cut, {"a": [1, whole]})
