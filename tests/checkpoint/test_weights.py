"""Models as safetensors files move to and from the PyTorch world."""

import json
import os

import numpy as np
import pytest
import safetensors.numpy

import resilin
from resilin import nn
from resilin.checkpoint import weights
from resilin.checkpoint.local import LocalStorage
from resilin.checkpoint.open_storage import open_storage
from resilin.checkpoint.weights import load_safetensors, save_safetensors
from resilin.errors import CheckpointError, CorruptFile, StorageMissing, UsageError, UsageTypeError
from resilin.testing.faults import Killed
from resilin.testing.storage_faults import FaultyStorage, StorageFaults


def model():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype is tensor.dtype
        assert resilin.equal(found[name], tensor), name


@pytest.mark.parametrize("mmap", [False, True])
def test_a_model_goes_to_a_file_and_back(tmp_path, mmap):
    first, second = model(), model()
    save_safetensors(first.state_dict(), tmp_path / "m.safetensors")
    found = load_safetensors(tmp_path / "m.safetensors", mmap=mmap)
    assert not any(tensor.requires_grad for tensor in found.values())
    second.load_state_dict(found)
    assert_same(second.state_dict(), first.state_dict())


def test_the_safetensors_package_reads_it_under_the_same_names(tmp_path):
    state = model().state_dict()
    save_safetensors(state, tmp_path / "m.safetensors")
    found = safetensors.numpy.load_file(tmp_path / "m.safetensors")
    assert {name: array.tolist() for name, array in found.items()} == {n: t.tolist() for n, t in state.items()}
    with safetensors.safe_open(tmp_path / "m.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}


def test_tensors_of_any_strides_on_any_device_are_written_in_order(tmp_path):
    base = resilin.arange(24).reshape(2, 3, 4)
    state = {
        "transposed": base.transpose(0, 2),
        "stepped": base[:, ::2],
        "expanded": resilin.ones(1, 3).expand(2, 3),
        "elsewhere": resilin.arange(3, device="sim:1"),
        "parameter": nn.Parameter(resilin.ones(2, dtype=resilin.bfloat16)),
        "bool": base > 3,
        "complex": resilin.tensor([1 + 2j]),
    }
    save_safetensors(state, tmp_path / "m.safetensors")
    assert_same(load_safetensors(tmp_path / "m.safetensors"), {n: t.detach().cpu() for n, t in state.items()})


def test_a_large_model_is_divided_with_an_index_as_model_hubs_have_it(tmp_path):
    state = {f"layer.{number}.weight": resilin.full((4,), float(number)) for number in range(5)}
    save_safetensors(state, tmp_path / "hub", max_shard_bytes=32)
    assert sorted(os.listdir(tmp_path / "hub")) == [
        "model-00001-of-00003.safetensors",
        "model-00002-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
        "model.safetensors.index.json",
    ]
    index = json.loads((tmp_path / "hub" / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 80}
    assert index["weight_map"]["layer.2.weight"] == "model-00002-of-00003.safetensors"
    for path in (tmp_path / "hub", tmp_path / "hub" / "model.safetensors.index.json"):
        assert_same(load_safetensors(path), state)
        assert_same(load_safetensors(path, mmap=True), state)
    (shard,) = {file for name, file in index["weight_map"].items() if name == "layer.4.weight"}
    assert safetensors.numpy.load_file(tmp_path / "hub" / shard)["layer.4.weight"].tolist() == [4.0] * 4


def test_a_tensor_above_the_limit_has_a_file_of_its_own(tmp_path):
    state = {"a": resilin.zeros(1), "b": resilin.zeros(100), "c": resilin.zeros(1), "d": resilin.zeros(1)}
    save_safetensors(state, tmp_path, max_shard_bytes=8)
    assert_same(load_safetensors(tmp_path), state)
    assert len(list(tmp_path.glob("model-*"))) == 3


def test_only_what_is_asked_for_is_read(tmp_path, monkeypatch):
    state = {f"w{number}": resilin.full((4,), float(number)) for number in range(5)}
    save_safetensors(state, tmp_path, max_shard_bytes=32)
    (tmp_path / "model-00001-of-00003.safetensors").unlink()
    assert_same(load_safetensors(tmp_path, names=["w4", "w2"]), {name: state[name] for name in ("w4", "w2")})
    assert list(load_safetensors(tmp_path, names=["w4", "w2"])) == ["w4", "w2"]
    assert load_safetensors(tmp_path, names=[]) == {}
    with pytest.raises(UsageError, match="has no tensor 'other', 'zzz'"):
        load_safetensors(tmp_path, names=["zzz", "w4", "other"])
    with pytest.raises(StorageMissing, match="model-00001-of-00003"):
        load_safetensors(tmp_path)


def test_a_smaller_or_larger_model_takes_the_place_of_another(tmp_path):
    large = {f"w{number}": resilin.full((4,), float(number)) for number in range(5)}
    small = {"v": resilin.ones(2)}
    for state, limit in ((large, 16), (large, 32), (small, 32), (large, 1000), (large, 32)):
        save_safetensors(state, tmp_path, max_shard_bytes=limit)
        assert_same(load_safetensors(tmp_path), state)
    assert len(os.listdir(tmp_path)) == 4


def test_killed_anywhere_it_leaves_the_old_model_or_the_new_one(tmp_path, monkeypatch):
    old = {f"w{number}": resilin.full((4,), float(number)) for number in range(5)}
    new = {name: tensor + 10 for name, tensor in old.items()}
    real = open_storage
    for nth in range(40):
        path = tmp_path / str(nth)
        save_safetensors(old, path, max_shard_bytes=32)
        faults = StorageFaults().kill("any", nth)
        with monkeypatch.context() as patched:
            patched.setattr(weights, "open_storage", lambda at, _, faults=faults: FaultyStorage(real(at), faults))
            try:
                save_safetensors(new, path, max_shard_bytes=32)
            except Killed:
                pass
            else:
                assert nth > 15
                assert not faults.all_fired()
                break
        found = load_safetensors(path)["w0"].tolist()
        assert found in ([0.0] * 4, [10.0] * 4)
        assert_same(load_safetensors(path), old if found == [0.0] * 4 else new)
    else:
        pytest.fail("it never came to an end")


def replaced(patched, at, times, save, calls=("size", "read", "read_into", "map")):
    """A reader's calls of its storage: before number `at` and the later ones, `times` in all, another job saves."""
    left = {"calls": at, "times": times}
    saving = []  # the other job's calls are its own
    for name in calls:
        real = getattr(LocalStorage, name)

        def call(storage, *args, real=real):
            left["calls"] -= not saving
            if left["calls"] < 0 < left["times"] and not saving:
                left["times"] -= 1
                saving.append(True)
                save(left["times"])
                saving.clear()
            return real(storage, *args)

        patched.setattr(LocalStorage, name, call)
    return left


@pytest.mark.parametrize("name", ["one.safetensors", "hub"])
@pytest.mark.parametrize("mmap", [False, True])
def test_a_model_that_is_replaced_while_it_is_read_is_no_mixture(tmp_path, monkeypatch, name, mmap):
    models = [{f"w{number}": resilin.full((4,), float(number + 10 * turn)) for number in range(5)} for turn in (0, 1)]

    def save(turn):
        save_safetensors(models[turn % 2], tmp_path / name, max_shard_bytes=32)

    for at in range(60):
        save(1)
        with monkeypatch.context() as patched:
            left = replaced(patched, at, 1, save)
            assert_same(load_safetensors(tmp_path / name, mmap=mmap), models[left["times"]])
        if left["times"]:
            break
    assert 3 < at < 59
    with monkeypatch.context() as patched:
        replaced(patched, 3, 1000, save)
        with pytest.raises(CheckpointError, match="was replaced each of the 3 times that it was read"):
            load_safetensors(tmp_path / name, mmap=mmap)


@pytest.mark.parametrize("limits", [(32, 1000), (1000, 32)])
def test_a_model_that_becomes_one_file_or_several_while_it_is_read_is_found(tmp_path, monkeypatch, limits):
    models = [{f"w{number}": resilin.full((4,), float(number + 10 * turn)) for number in range(5)} for turn in (0, 1)]

    def save(turn):
        save_safetensors(models[turn], tmp_path, max_shard_bytes=limits[turn])

    for at in range(60):
        save(1)
        with monkeypatch.context() as patched:
            left = replaced(patched, at, 1, save, ("size", "version", "read", "read_into"))
            assert_same(load_safetensors(tmp_path), models[left["times"]])
        if left["times"]:
            break
    assert 3 < at < 59


def test_a_mapped_tensor_may_be_written_to_without_changing_the_file(tmp_path):
    save_safetensors({"a": resilin.arange(3)}, tmp_path / "a.safetensors")
    found = load_safetensors(tmp_path / "a.safetensors", mmap=True)
    found["a"] += 5
    assert found["a"].tolist() == [5, 6, 7]
    assert load_safetensors(tmp_path / "a.safetensors")["a"].tolist() == [0, 1, 2]


def test_a_tensor_that_lies_askew_in_another_writers_file_is_mapped_by_a_copy(tmp_path):
    head = json.dumps(
        {
            "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
            "b": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
        }
    ).encode()
    body = b"\x07" + np.float32([1.5, 2.5]).tobytes()
    (tmp_path / "a.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + body)
    found = load_safetensors(tmp_path / "a.safetensors", mmap=True)
    assert (found["a"].tolist(), found["b"].tolist()) == ([7], [1.5, 2.5])


def test_urls_are_paths_too():
    state = {f"w{number}": resilin.full((4,), float(number)) for number in range(3)}
    for path, limit in (("memory://weights/m.safetensors", 1000), ("memory://weights/hub", 16)):
        save_safetensors(state, path, max_shard_bytes=limit)
        assert_same(load_safetensors(path), state)
        with pytest.raises(UsageError, match="mmap=True needs a local file"):
            load_safetensors(path, mmap=True)
    open_storage("memory://weights").delete_tree("")


@pytest.mark.parametrize(
    ("state", "error", "why"),
    [
        ({"a": {"b": resilin.zeros(1)}}, UsageTypeError, "'a' is a dict; expected tensors by their names"),
        ({1: resilin.zeros(1)}, UsageTypeError, "1 is a Tensor; expected tensors by their names"),
        ({"a": np.zeros(1)}, UsageTypeError, "'a' is a ndarray"),
        ({"a": resilin.zeros(1, dtype=resilin.complex128)}, UsageError, "'a' is complex128, which safetensors has not"),
    ],
)
def test_what_is_no_flat_state_is_refused_before_anything_is_written(tmp_path, state, error, why):
    with pytest.raises(error, match=why):
        save_safetensors(state, tmp_path / "new" / "m.safetensors")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "index",
    [
        b"",
        b"[]",
        b"{}",
        b'{"weight_map": []}',
        b'{"weight_map": {"a": 1}}',
        b'{"weight_map": {"a": "../secret.safetensors"}}',
        b'{"weight_map": {"a": "/etc/passwd"}}',
        b'{"weight_map":' * 10_000,
    ],
)
def test_a_damaged_or_hostile_index_is_refused(tmp_path, index):
    (tmp_path / "model.safetensors.index.json").write_bytes(index)
    with pytest.raises(CorruptFile, match=r"model\.safetensors\.index\.json is no index of safetensors files"):
        load_safetensors(tmp_path)


def test_an_index_that_names_what_its_file_has_not_is_refused(tmp_path):
    save_safetensors({"a": resilin.zeros(1)}, tmp_path / "x.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "x.safetensors", "b": "x.safetensors"}}'
    )
    with pytest.raises(CorruptFile, match=r"x\.safetensors has no tensor 'b', which the index says it has"):
        load_safetensors(tmp_path)


def test_an_empty_folder_says_what_it_lacks(tmp_path):
    with pytest.raises(StorageMissing, match=r"has neither model\.safetensors\.index\.json nor model\.safetensors"):
        load_safetensors(tmp_path)


@pytest.mark.parametrize(("limit", "kind"), [(0, UsageError), ("1GB", UsageTypeError)])
def test_a_limit_that_is_none_is_refused(tmp_path, limit, kind):
    with pytest.raises(kind, match="max_shard_bytes must be an integer of at least 1, got "):
        save_safetensors({"a": resilin.zeros(1)}, tmp_path, max_shard_bytes=limit)
    assert not list(tmp_path.iterdir())
