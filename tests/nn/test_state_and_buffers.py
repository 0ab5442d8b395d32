"""state_dict by overrides and hooks, assignment of tensors, Buffer, and the rest of Module's surface."""

import copy
import pickle

import numpy as np
import pytest

import resilin
from resilin import nn
from resilin.errors import UsageError
from resilin.nn.modules import utils


class Versioned(nn.Module):
    """Its version 2 holds the logarithm of what version 1 held."""

    _version = 2

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(resilin.ones(2))

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):
        self.loaded = local_metadata.get("version")
        if self.loaded in (None, 1):
            state_dict[prefix + "scale"] = state_dict.pop(prefix + "old").log()
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


def test_a_state_dict_remembers_the_version_of_every_module():
    net = nn.Sequential(nn.Linear(2, 2), Versioned())
    state = net.state_dict()
    assert dict(state._metadata) == {"": {"version": 1}, "0": {"version": 1}, "1": {"version": 2}}
    net.load_state_dict(copy.deepcopy(state))
    assert net[1].loaded == 2


def test_versions_outlive_saving_and_pickling(tmp_path):
    net = nn.Sequential(Versioned())
    resilin.save({"model": net.state_dict()}, tmp_path / "state")
    for state in (resilin.load(tmp_path / "state")["model"], pickle.loads(pickle.dumps(net.state_dict()))):
        net.load_state_dict(state)
        assert net[0].loaded == 2
        assert resilin.equal(state["0.scale"], net[0].scale)


def test_a_module_can_read_what_an_earlier_version_of_it_wrote():
    net = nn.Sequential(Versioned())
    assert repr(net.load_state_dict({"0.old": resilin.full((2,), np.e)})) == "<All keys matched successfully>"
    assert resilin.allclose(net[0].scale, resilin.ones(2))


def test_a_module_can_write_what_it_wants():
    class Half(nn.Linear):
        def _save_to_state_dict(self, destination, prefix, keep_vars):
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[prefix + "weight"] = destination[prefix + "weight"].half()

    assert nn.Sequential(Half(2, 2)).state_dict()["0.weight"].dtype is resilin.float16


def test_private_hooks_take_the_arguments_that_pytorchs_take():
    net = nn.Linear(1, 1)
    net._register_state_dict_hook(lambda module, state, prefix, meta: {f"net.{k}": v for k, v in state.items()})
    assert list(net.state_dict()) == ["net.weight", "net.bias"]
    seen = []
    net._register_load_state_dict_pre_hook(lambda state, prefix, *rest: seen.append(prefix))
    net._register_load_state_dict_pre_hook(lambda module, state, *rest: seen.append(module), with_module=True)
    net.load_state_dict(nn.Linear(1, 1).state_dict())
    assert seen == ["", net]


def test_a_public_hook_must_not_return_another_dict():
    net = nn.Linear(1, 1)
    net.register_state_dict_post_hook(lambda *args: {})
    with pytest.raises(UsageError, match="must return None"):
        net.state_dict()


def test_post_hooks_of_inner_modules_see_what_is_missing():
    net = nn.Sequential(nn.Linear(1, 1))
    net[0].register_load_state_dict_post_hook(lambda module, keys: keys.missing_keys.clear())
    net.load_state_dict({})


def test_errors_name_every_problem_in_pytorchs_words():
    net = nn.Sequential(nn.Linear(2, 3))
    with pytest.raises(RuntimeError) as caught:
        net.load_state_dict({"0.weight": resilin.ones(3, 3), "0.b": 1, "1.weight": 2})
    assert str(caught.value).split("\n\t") == [
        "Error(s) in loading state_dict for Sequential:",
        'Missing key(s) in state_dict: "0.bias". ',
        'Unexpected key(s) in state_dict: "1.weight", "0.b". ',
        "size mismatch for 0.weight: copying a param with shape (3, 3) from checkpoint, the shape in current model is "
        "(3, 2).",
    ]


def test_assigned_parameters_are_the_given_ones_and_keep_whether_they_are_trained():
    net = nn.Linear(2, 2).requires_grad_(False)
    given = {"weight": nn.Parameter(resilin.ones(2, 2)), "bias": resilin.ones(2, dtype=resilin.float64)}
    net.load_state_dict(given, assign=True)
    assert net.weight is given["weight"]
    assert not net.weight.requires_grad
    assert net.bias.dtype is resilin.float64
    assert isinstance(net.bias, nn.Parameter)
    assert not net.bias.requires_grad


def test_a_parameter_without_dimensions_takes_one_of_length_one():
    net = nn.Module()
    net.scale = nn.Parameter(resilin.tensor(1.0))
    net.load_state_dict({"scale": resilin.tensor([3.0])})
    assert net.scale.item() == 3


def test_an_assigned_buffer_is_registered_and_persists_as_it_says():
    net = nn.Module()
    net.kept, net.dropped = nn.Buffer(resilin.ones(2)), nn.Buffer(resilin.ones(1), persistent=False)
    assert [name for name, _ in net.named_buffers()] == ["kept", "dropped"]
    assert list(net.state_dict()) == ["kept"]
    net.kept = resilin.zeros(2)
    assert net.state_dict()["kept"].tolist() == [0, 0]
    assert list(copy.deepcopy(net).state_dict()) == ["kept"]


def test_a_buffer_is_a_tensor_over_the_same_memory():
    data = resilin.ones(2)
    buffer = nn.Buffer(data)
    buffer[0] = 5
    assert data.tolist() == [5, 1]
    assert type(buffer + 1) is resilin.Tensor
    assert repr(buffer) == "tensor([5., 1.])"
    assert nn.Buffer().numel() == 0
    with pytest.raises(TypeError, match="expected a Tensor, got list"):
        nn.Buffer([1.0])


def test_set_submodule_replaces_modules_only():
    net = nn.Sequential(nn.Linear(1, 1))
    net.set_submodule("0", nn.ReLU(), strict=True)
    net.set_submodule("tail", nn.ReLU())
    with pytest.raises(AttributeError, match="no module 'other'"):
        net.set_submodule("other", nn.ReLU(), strict=True)
    with pytest.raises(AttributeError, match="no module 'training'"):
        net.set_submodule("training", nn.ReLU())
    with pytest.raises(ValueError, match="expected a Module"):
        net.set_submodule("0", resilin.ones(1))


def test_init_passes_arguments_on_where_a_class_asks_for_it():
    class Named:
        def __init__(self, name):
            self.name = name

    class Net(nn.Module, Named):
        call_super_init = True

    assert Net("a").name == "a"
    with pytest.raises(TypeError, match="unexpected argument 'name'"):
        nn.Module(name="a")


def test_what_is_not_there_is_refused_with_what_to_do():
    with pytest.raises(NotImplementedError, match="register_full_backward_hook"):
        nn.Linear(1, 1).register_backward_hook(print)


def test_skipping_start_values_leaves_the_generator_where_it_was():
    resilin.manual_seed(1)
    layer = nn.utils.skip_init(nn.Linear, 2, 3, bias=False)
    assert layer.weight.shape == (3, 2)
    after = resilin.rand(1).item()
    resilin.manual_seed(1)
    assert resilin.rand(1).item() == after
    with pytest.raises(RuntimeError, match="'device'"):
        nn.utils.skip_init(nn.ReLU)
    with pytest.raises(RuntimeError, match="Module class"):
        nn.utils.skip_init(resilin.ones)


def test_data_parallel_calls_its_module():
    net = nn.Linear(2, 1)
    wrapped = nn.DataParallel(net)
    assert resilin.equal(wrapped(resilin.ones(2)), net(resilin.ones(2)))
    assert list(wrapped.state_dict()) == ["module.weight", "module.bias"]


def test_modules_counts_shared_ones_once_or_as_often_as_they_occur():
    shared = nn.ReLU()
    net = nn.Sequential(shared, shared)
    assert len(list(net.modules())) == 2
    assert len(list(net.modules(remove_duplicate=False))) == 3


def test_an_embedding_takes_a_ready_table():
    table = resilin.ones(3, 2)
    embedding = nn.Embedding(3, 2, _weight=table, _freeze=True)
    assert embedding.weight.data_ptr() == table.data_ptr()
    assert not embedding.weight.requires_grad
    with pytest.raises(UsageError, match=r"shape \(3, 2\), got \(2, 2\)"):
        nn.Embedding(3, 2, _weight=resilin.ones(2, 2))


def test_data_parallel_as_a_function_calls_the_module():
    net = nn.Bilinear(2, 3, 1)
    x, y = resilin.ones(4, 2), resilin.ones(4, 3)
    assert resilin.equal(nn.parallel.data_parallel(net, (x, y)), net(x, y))
    assert resilin.equal(nn.parallel.data_parallel(net, x, module_kwargs={"input2": y}), net(x, y))


def test_a_wrappers_state_becomes_that_of_the_module():
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    wrapped = nn.DataParallel(net).state_dict()
    utils.consume_prefix_in_state_dict_if_present(wrapped, "module.")
    assert list(wrapped) == list(net.state_dict())
    assert wrapped._metadata == net.state_dict()._metadata
    utils.consume_prefix_in_state_dict_if_present(wrapped, "module.")
    assert list(wrapped) == list(net.state_dict())
    plain = {"module.a": 1, "b": 2, "modules.c": 3}
    utils.consume_prefix_in_state_dict_if_present(plain, "module.")
    assert plain == {"a": 1, "b": 2, "modules.c": 3}


def test_helpers_of_layers_repeat_single_values():
    assert utils._pair(3) == (3, 3)
    assert utils._triple((1, 2, 3)) == (1, 2, 3)
    assert utils._single([4]) == (4,)
    assert utils._quadruple("same") == ("s", "a", "m", "e")  # as in PyTorch
    assert utils._pair.__name__ == "_pair"
    assert utils._reverse_repeat_tuple((1, 2), 2) == (2, 2, 1, 1)
