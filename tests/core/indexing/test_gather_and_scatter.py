"""Reading and writing at places: gather, scatter, take, put and their kin, which sizes and dtypes fit."""

from typing import Any

import pytest

import resilin


def test_slices_are_filled_at_places_counted_from_the_end():
    x = resilin.zeros(3, requires_grad=True)
    y = x.index_fill(0, resilin.tensor([-1]), 3.0)
    assert y.tolist() == [0, 0, 3]
    y.sum().backward()
    assert x.grad.tolist() == [1, 1, 0]
    with pytest.raises(IndexError, match="-4 is out of bounds"):
        x.index_fill(0, resilin.tensor([-4]), 3.0)


def test_a_number_picks_from_a_vector():
    assert resilin.arange(5).gather(0, resilin.tensor(1)).tolist() == 1


def test_bools_are_added_at_places_by_or():
    x = resilin.tensor([False, True, False])
    assert x.diag_embed().any(1).tolist() == [False, True, False]
    x.index_put_((resilin.tensor([0, 0]),), resilin.tensor([True, True]), accumulate=True)
    assert x.tolist() == [True, True, False]


@pytest.mark.parametrize("offset", [-1, 0, 2])
@pytest.mark.parametrize("dtype", [resilin.float16, resilin.bfloat16, resilin.float32, resilin.complex64])
def test_a_diagonal_is_made_of_the_numbers_themselves(dtype, offset):
    x = resilin.tensor([-0.0, float("nan"), -1.0], dtype=dtype)
    ways = [resilin.diag_embed, resilin.diag, resilin.diagflat, resilin.vmap(resilin.diag_embed)]
    for grad in (False, True):
        x = x.detach().requires_grad_(grad)
        for way in ways[:3]:
            found = way(x, offset).detach()
            assert found.diagonal(offset).contiguous().view(resilin.uint8).equal(x.detach().view(resilin.uint8))
            assert (found.view(resilin.uint8) != 0).sum() == (x.detach().view(resilin.uint8) != 0).sum()
    rows = resilin.stack([x, -x]).detach()
    assert ways[3](rows).diagonal(0, 1, 2).contiguous().view(resilin.uint8).equal(rows.view(resilin.uint8))


def test_numbers_without_dimensions_are_scattered_into():
    x = resilin.tensor(3.0)
    at = resilin.tensor(0)
    assert [x.scatter_reduce(0, at, x, how).item() for how in ("sum", "prod", "mean", "amax")] == [6, 9, 3, 3]


def test_gather_of_no_indices_has_their_shape():
    assert resilin.gather(resilin.arange(6), 0, resilin.zeros(2, 0, dtype=resilin.int64)).shape == (2, 0)


def test_take_along_dim_counts_negative_indices_from_the_end():
    x = resilin.arange(6).reshape(2, 3)
    assert resilin.take_along_dim(x, resilin.tensor([[-1], [-3]]), 1).tolist() == [[2], [3]]
    with pytest.raises(RuntimeError, match="out of bounds"):
        resilin.take_along_dim(x, resilin.tensor([[-4]]), 1)


@pytest.mark.parametrize(("reduce", "expected"), [("prod", 6), ("mean", 2.5), ("amax", 3), ("amin", 2)])
def test_index_reduce_of_a_number_treats_it_as_a_vector(reduce, expected):
    x = resilin.tensor(2.0).index_reduce(0, resilin.tensor([0]), resilin.tensor(3.0), reduce)
    assert x.shape == ()
    assert x.item() == expected


def _leaf(values: Any) -> Any:
    return resilin.tensor(values, dtype=resilin.float64, requires_grad=True)


def test_take_counts_negative_indices_from_the_end() -> None:
    x = _leaf([[0.0, 1], [2, 3]])
    assert x.take(resilin.tensor([0, -1])).tolist() == [0, 3]
    with pytest.raises(IndexError, match="out of range"):
        x.take(resilin.tensor([-5]))


def test_scatter_adds_or_multiplies_with_what_is_there() -> None:
    x = resilin.full((3, 2), 2.0)
    index = resilin.tensor([[0, 1], [0, 1], [2, 1]])
    src = resilin.arange(6.0).reshape(3, 2) + 1
    assert x.clone().scatter_(0, index, src, reduce="add").tolist() == [[6, 2], [2, 14], [7, 2]]
    assert x.scatter(0, index, src, reduce="multiply").tolist() == [[6, 2], [2, 96], [10, 2]]
    assert x.scatter(0, index, 3, reduce="multiply").tolist() == [[18, 2], [2, 54], [6, 2]]
    assert x.scatter(0, index, value=1, reduce="add").tolist() == [[4, 2], [2, 5], [3, 2]]
    src.requires_grad_()
    x.scatter(0, index, src, reduce="add").sum().backward()
    assert src.grad.tolist() == [[1, 1]] * 3
    with pytest.raises(RuntimeError, match="has no gradient"):
        x.scatter(0, index, src, reduce="multiply")
    with pytest.raises(RuntimeError, match="either add or multiply"):
        x.scatter(0, index, src, reduce="mean")


@pytest.mark.parametrize("reduce", ["sum", "amax", "amin", "mean", "prod"])
def test_scattering_with_an_index_shorter_than_the_input_has_gradients(reduce):
    x = resilin.ones(4, 5, requires_grad=True, dtype=resilin.float64)
    source = resilin.full((3, 2), 2.0, dtype=resilin.float64).requires_grad_()
    index = resilin.tensor([[0, 0], [2, 2], [3, 1]])
    x.scatter_reduce(1, index, source, reduce).sum().backward()
    assert x.grad.shape == (4, 5)
    assert source.grad.shape == (3, 2)
    resilin.zeros(4, 5, dtype=resilin.float64).scatter_add(1, index, source).sum().backward()


ROWS, TWO = resilin.tensor([[0, 1], [1, 2]]), resilin.tensor([0, 1])

WRONG_PLACES = {
    "scatter of a vector of indices": lambda x: x.scatter(0, TWO, 1.0),
    "scatter with less than the indices": lambda x: x.scatter(0, ROWS, resilin.ones(1, 2)),
    "scatter beyond other dimensions": lambda x: x.scatter(0, resilin.tensor([[0, 1, 2]]), 1.0),
    "scatter of a tensor without dimensions": lambda x: x.scatter(0, ROWS, resilin.tensor(1.0)),
    "scatter_add with less than the indices": lambda x: x.scatter_add(0, ROWS, resilin.ones(1, 2)),
    "scatter_add of a vector": lambda x: x.scatter_add(0, TWO, resilin.ones(2)),
    "scatter_reduce of a vector": lambda x: x.scatter_reduce(0, ROWS, resilin.ones(2), "sum"),
    "index_add of a vector": lambda x: x.index_add(0, TWO, resilin.ones(2)),
    "index_add of fewer slices": lambda x: x.index_add(0, TWO, resilin.ones(1, 2)),
    "index_add of shorter slices": lambda x: x.index_add(0, TWO, resilin.ones(2, 1)),
    "index_reduce of more slices": lambda x: x.index_reduce(0, TWO, resilin.ones(3, 2), "prod"),
    "index_reduce of shorter slices": lambda x: x.index_reduce(0, TWO, resilin.ones(2, 1), "prod"),
    "index_fill with a vector": lambda x: x.index_fill(0, TWO, resilin.ones(1)),
}


@pytest.mark.parametrize("write", WRONG_PLACES.values(), ids=WRONG_PLACES)
def test_nothing_is_spread_over_places_that_it_does_not_fit(write):
    with pytest.raises(RuntimeError, match=r"expected index|need a source of shape|without dimensions"):
        write(resilin.zeros(3, 2))


@pytest.mark.parametrize("name", ["index_add", "index_copy", "index_fill", "index_reduce", "index_select"])
def test_slices_are_chosen_by_vectors(name):
    rest = {"index_fill": (1.0,), "index_select": (), "index_reduce": (resilin.ones(2, 2), "prod")}
    with pytest.raises(IndexError, match="supposed to be a vector"):
        getattr(resilin.zeros(3, 2), name)(0, resilin.tensor([[0, 1]]), *rest.get(name, (resilin.ones(2, 2),)))


def test_an_empty_index_of_any_dimensions_writes_nothing():
    none = resilin.zeros(0, dtype=resilin.int64)
    assert resilin.zeros(3, 2).scatter(0, none, 1.0).sum().item() == 0
    assert resilin.zeros(3, 2).scatter_add(0, none, resilin.ones(3)).sum().item() == 0


def test_vectors_are_scattered_into_at_a_number():
    assert resilin.zeros(3).scatter(0, resilin.tensor(1), resilin.tensor(5.0)).tolist() == [0, 5, 0]


FIRST = resilin.tensor([0])

WRONG_DTYPES = {
    "index_put": lambda x, v: x.index_put((FIRST,), v),
    "put": lambda x, v: x.put(FIRST, v),
    "index_copy": lambda x, v: x.index_copy(0, FIRST, v),
    "index_add": lambda x, v: x.index_add(0, FIRST, v),
    "scatter": lambda x, v: x.scatter(0, FIRST, v),
    "scatter_add": lambda x, v: x.scatter_add(0, FIRST, v),
    "scatter_reduce": lambda x, v: x.scatter_reduce(0, FIRST, v, "sum"),
}


@pytest.mark.parametrize("write", WRONG_DTYPES.values(), ids=WRONG_DTYPES)
def test_what_is_written_at_places_has_the_dtype_of_where_it_goes(write):
    for x, value in [(resilin.arange(3), 0.5), (resilin.zeros(3), 1j), (resilin.zeros(3), 1)]:
        with pytest.raises(RuntimeError, match="need one dtype"):
            write(x, resilin.tensor([value]))
