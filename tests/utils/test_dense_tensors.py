"""What programs take from torch._utils. Facts are those of PyTorch 2.13."""

import sys

import pytest

import resilin as torch
from resilin._utils import (
    ExceptionWrapper,
    _flatten_dense_tensors,
    _get_device_index,
    _rebuild_parameter_with_state,
    _rebuild_tensor_v2,
    _rebuild_tensor_v3,
    _reorder_tensors_as,
    _take_tensors,
    _unflatten_dense_tensors,
)


def test_tensors_lie_in_one_flat_tensor_and_are_views_of_it_again():
    given = [torch.arange(6.0).reshape(2, 3).t(), torch.ones(()), torch.zeros(2)]
    flat = _flatten_dense_tensors(given)
    assert flat.tolist() == [0, 3, 1, 4, 2, 5, 1, 0, 0]
    parts = _unflatten_dense_tensors(flat, given)
    assert all(torch.equal(part, one) for part, one in zip(parts, given, strict=True))
    flat.zero_()
    assert float(parts[0].sum()) == 0
    only = torch.ones(3)
    assert _flatten_dense_tensors([only]).data_ptr() == only.data_ptr()
    assert torch._utils._flatten_dense_tensors is _flatten_dense_tensors


def test_groups_have_one_type_and_about_the_bytes_asked_for():
    given = [torch.ones(2), torch.ones(2, dtype=torch.float64), torch.ones(3), torch.ones(1)]
    groups = list(_take_tensors(given, 12))
    assert [[one.numel() for one in group] for group in groups] == [[2], [3], [2], [1]]
    mixed = [given[1], given[0], given[2], given[3]]
    assert [one is two for one, two in zip(_reorder_tensors_as(mixed, given), given, strict=True)] == [True] * 4


def test_tensors_are_made_over_storages():
    base = torch.arange(6.0)
    made = _rebuild_tensor_v3(base.untyped_storage(), 1, (2, 2), (2, 1), True, None, torch.float32)
    assert made.tolist() == [[1, 2], [3, 4]]
    assert made.requires_grad
    assert made.data_ptr() == base.data_ptr() + 4
    with pytest.raises(TypeError, match="_rebuild_tensor_v3"):
        _rebuild_tensor_v2(base.untyped_storage(), 0, (2,), (1,), False, None)
    parameter = _rebuild_parameter_with_state(base, False, None, {"note": 1})
    assert (parameter.note, parameter.requires_grad) == (1, False)


def test_a_storage_is_sliced_read_from_a_file_and_taken_as_an_array(tmp_path):
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(16)))
    storage = torch.UntypedStorage.from_file(str(path), nbytes=16)
    part = torch.asarray(storage.untyped()[4:8], dtype=torch.uint8)
    assert part.tolist() == [4, 5, 6, 7]
    part[0] = 9
    assert (storage[4], path.read_bytes()[4]) == (9, 4)  # private: the file stays as it is
    assert len(torch.UntypedStorage(5)) == 5
    assert torch.tensor([[1], [2]], dtype=torch.int16).t().untyped_storage().tolist() == [1, 0, 2, 0]


def test_devices_have_numbers():
    assert _get_device_index("cuda:1") == 1
    assert _get_device_index(2) == 2
    assert _get_device_index("cpu", allow_cpu=True) == -1
    for given in ("cpu", torch.device("cpu:0"), None):
        with pytest.raises(ValueError, match="Expected a"):
            _get_device_index(given)


def test_an_error_is_raised_again_with_its_traceback():
    class Two(Exception):
        def __init__(self, one, two):
            super().__init__(one, two)

    for error, kind in ((KeyError("x"), KeyError), (Two(1, 2), RuntimeError)):
        try:
            raise error
        except (KeyError, Two):
            wrapped = ExceptionWrapper(sys.exc_info(), where="in a thread")
        with pytest.raises(kind, match=rf"(?s)Caught {type(error).__name__} in a thread.*Traceback"):
            wrapped.reraise()
