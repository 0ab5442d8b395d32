"""Functions that give several tensors give instances of torch.return_types. Facts are those of PyTorch 2.13."""

import copy
import pickle

import pytest

import resilin
from resilin import return_types
from resilin.func import vmap
from resilin.utils import _pytree as pytree

X = resilin.tensor([[2.0, 1.0], [1.0, 3.0]])
CALLS = {
    "aminmax": lambda: resilin.aminmax(X),
    "cummax": lambda: X.cummax(0),
    "cummin": lambda: X.cummin(0),
    "frexp": lambda: resilin.frexp(X),
    "histogram": lambda: resilin.histogram(X, 2),
    "histogramdd": lambda: resilin.histogramdd(X, [2, 2]),
    "kthvalue": lambda: X.kthvalue(1),
    "linalg_cholesky_ex": lambda: resilin.linalg.cholesky_ex(X),
    "linalg_eig": lambda: resilin.linalg.eig(X),
    "linalg_eigh": lambda: resilin.linalg.eigh(X),
    "linalg_inv_ex": lambda: resilin.linalg.inv_ex(X),
    "linalg_lstsq": lambda: resilin.linalg.lstsq(X, X),
    "linalg_lu": lambda: resilin.linalg.lu(X),
    "linalg_lu_factor": lambda: resilin.linalg.lu_factor(X),
    "linalg_lu_factor_ex": lambda: resilin.linalg.lu_factor_ex(X),
    "linalg_qr": lambda: resilin.linalg.qr(X),
    "linalg_slogdet": lambda: resilin.linalg.slogdet(X),
    "linalg_solve_ex": lambda: resilin.linalg.solve_ex(X, X),
    "linalg_svd": lambda: resilin.linalg.svd(X),
    "lu_unpack": lambda: resilin.lu_unpack(*resilin.linalg.lu_factor(X)),
    "max": lambda: X.max(0),
    "median": lambda: X.median(1),
    "min": lambda: resilin.min(X, dim=-1, keepdim=True),
    "mode": lambda: X.mode(0),
    "nanmedian": lambda: X.nanmedian(0),
    "qr": lambda: resilin.qr(X),
    "slogdet": lambda: X.slogdet(),
    "sort": lambda: X.sort(),
    "svd": lambda: X.svd(),
    "topk": lambda: X.topk(1),
    "triangular_solve": lambda: resilin.triangular_solve(X, X),
}


def test_there_is_a_type_for_each_function():
    assert sorted(CALLS) == [one.__name__ for one in return_types.all_return_types]


@pytest.mark.parametrize("name", CALLS)
def test_results_are_instances_with_named_parts(name):
    found, kind = CALLS[name](), getattr(return_types, name)
    assert type(found) is kind
    assert isinstance(found, tuple)
    assert found.n_fields == len(found)
    assert all(getattr(found, part) is found[place] for place, part in enumerate(kind.__match_args__))


@pytest.mark.parametrize("name", ["sort", "topk", "kthvalue", "median", "nanmedian", "mode", "max", "min", "cummax"])
def test_a_tensor_without_dimensions_gives_the_same_type(name):
    more = (1,) if name in ("topk", "kthvalue") else (0,)
    assert type(getattr(resilin.tensor(3.0), name)(*more)) is getattr(return_types, name)


def test_they_are_made_of_one_sequence_and_shown_with_their_names():
    found = X.max(0)
    again = type(found)(part + 0 for part in found)
    assert resilin.equal(again.values, found.values)
    assert not hasattr(found, "_fields")
    with pytest.raises(TypeError, match=r"return_types\.max\(\) takes a 2-sequence \(1-sequence given\)"):
        return_types.max((1,))
    assert repr(return_types.max((1, 2))) == "resilin.return_types.max(\nvalues=1,\nindices=2)"


def test_they_are_copied_pickled_and_taken_apart():
    found = X.sort()
    for again in (copy.deepcopy(found), pickle.loads(pickle.dumps(found)), pytree.tree_map(lambda part: part, found)):
        assert type(again) is return_types.sort
        assert resilin.equal(again.indices, found.indices)
    assert type(vmap(lambda row: row.sort())(X)) is return_types.sort
    assert resilin.equal(vmap(lambda row: row.max(0))(X).values, X.max(1).values)
