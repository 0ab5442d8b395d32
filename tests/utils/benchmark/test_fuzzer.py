"""Fuzzers make the tensors that they promise, and refuse what they cannot draw."""

import numpy as np
import pytest

import resilin
from resilin.errors import UsageError
from resilin.utils.benchmark import FuzzedParameter, FuzzedSparseTensor, FuzzedTensor, Fuzzer, ParameterAlias


def fuzzer(*tensors, parameters=(), **options):
    n = FuzzedParameter("n", minval=2, maxval=9, distribution="uniform")
    return Fuzzer(parameters=[n, *parameters], tensors=list(tensors), seed=3, **options)


@pytest.mark.parametrize(
    "dtype",
    [resilin.float32, resilin.float64, resilin.bfloat16, resilin.complex64, resilin.bool, resilin.int8, resilin.int64],
    ids=str,
)
def test_elements_are_of_the_dtype_and_come_again(dtype):
    of = fuzzer(FuzzedTensor("x", size=("n", 4), dtype=dtype))
    first, again = ([tensors["x"] for tensors, _, _ in of.take(4)] for _ in range(2))
    assert {one.dtype for one in first} == {dtype}
    assert all(resilin.equal(one, other) for one, other in zip(first, again, strict=True))
    assert len({one.shape for one in first}) > 1


def test_steps_permutations_and_dimensions():
    dim = FuzzedParameter("dim", minval=1, maxval=3, distribution="uniform")
    of = fuzzer(
        FuzzedTensor("x", size=("n", 3), steps=(2, "n"), probability_contiguous=0.0, dim_parameter="dim"),
        parameters=[dim],
    )
    dims = set()
    for tensors, properties, params in of.take(30):
        x, n = tensors["x"], params["n"]
        assert tuple(x.shape) == (n, 3, 1)[: params["dim"]]
        assert properties["x"]["steps"] == (2, n, 1)[: params["dim"]]
        if params["dim"] > 1:
            assert properties["x"]["order"].tolist() != [*range(params["dim"])]
        dims.add(params["dim"])
    assert dims == {1, 2, 3}


def test_a_constructor_gets_size_dtype_and_parameters():
    def constant(size, dtype, n, **params):
        return resilin.full(size, n, dtype=dtype)

    of = fuzzer(FuzzedTensor("x", size=("n",), steps=(3,), tensor_constructor=constant, dtype=resilin.int64))
    for tensors, _, params in of.take(5):
        assert tensors["x"].tolist() == [params["n"]] * params["n"]


def test_a_seed_is_drawn_where_none_is_given():
    seeds = {Fuzzer(parameters=[], tensors=[])._seed for _ in range(3)}
    assert len(seeds) == 3


def test_what_is_rejected_is_counted():
    of = fuzzer(constraints=[lambda params: params["n"] > 5])
    assert of.rejection_rate == 0
    assert all(params["n"] > 5 for _, _, params in of.take(50))
    assert 0.2 < of.rejection_rate < 0.8
    with pytest.raises(UsageError, match="none of 1000 sets of parameters met all constraints"):
        next(fuzzer(FuzzedTensor("x", size=("n",), min_elements=10)).take(1))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"distribution": "normal"}, "expected 'loguniform', 'uniform' or a dictionary, got 'normal'"),
        ({"distribution": "uniform", "minval": 1}, "needs minval and maxval, got 1 and None"),
        ({"distribution": "uniform", "minval": 5, "maxval": 2}, "no less as maxval, got 5 and 2"),
        ({"distribution": "loguniform", "minval": 0, "maxval": 2}, "a minval of more than 0 .*got 0 and 2"),
        ({"distribution": {1: 0.5, 2: 0.4}}, "sum to 0.9, expected 1"),
        ({"distribution": {1: 1.5, 2: -0.5}}, "at least 0"),
        ({"distribution": {1: 1.0}, "maxval": 3}, "no minval or maxval beside choices, got None and 3"),
    ],
    ids=["unknown", "no maxval", "turned", "no logarithm", "sum", "negative", "bounds"],
)
def test_distributions_are_checked(options, said):
    with pytest.raises(UsageError, match=f"FuzzedParameter 'n': .*{said}"):
        FuzzedParameter("n", **options)


@pytest.mark.parametrize(
    ("aliases", "said"),
    [({"a": "b", "b": "c", "c": "a"}, "a -> b -> c -> a: a cycle"), ({"a": "other"}, "a -> other: no such parameter")],
    ids=["cycle", "unknown"],
)
def test_aliases_end_at_a_value(aliases, said):
    of = fuzzer(
        parameters=[FuzzedParameter(name, distribution={ParameterAlias(to): 1.0}) for name, to in aliases.items()]
    )
    with pytest.raises(UsageError, match=f"ParameterAlias: {said}"):
        next(of.take(1))


def test_one_name_means_one_thing():
    with pytest.raises(UsageError, match=r"expected to be different: \['n'\]"):
        fuzzer(FuzzedTensor("n", size=(2,)))


def test_choices_keep_their_types():
    choice = FuzzedParameter("c", distribution={True: 0.3, None: 0.3, "text": 0.4})
    drawn = {choice.sample(np.random.RandomState(seed)) for seed in range(30)}
    assert drawn == {True, None, "text"}
    assert repr(ParameterAlias("x")) == "ParameterAlias[alias_to: x]"


def test_sparse_tensors_are_refused():
    with pytest.raises(NotImplementedError, match="FuzzedSparseTensor 'x': resilin has dense tensors"):
        FuzzedSparseTensor("x", size=("n",), nnz="k", density="d")
