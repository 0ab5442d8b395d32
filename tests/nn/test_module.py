"""Module: registration, walking, state, hooks, printing."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest

import resilin
from resilin import nn
from resilin.errors import UsageError


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.body = nn.Sequential(nn.ReLU(), nn.Linear(4, 2, bias=False))
        self.scale = nn.Parameter(resilin.ones(1))
        self.register_buffer("steps", resilin.zeros(1))
        self.register_buffer("cache", resilin.zeros(2), persistent=False)

    def forward(self, x):
        return self.body(self.first(x)) * self.scale


def test_names_come_in_order_of_registration():
    net = Net()
    assert [name for name, _ in net.named_parameters()] == ["scale", "first.weight", "first.bias", "body.1.weight"]
    assert [name for name, _ in net.named_buffers()] == ["steps", "cache"]
    assert [name for name, _ in net.named_modules()] == ["", "first", "body", "body.0", "body.1"]
    assert [name for name, _ in net.named_children()] == ["first", "body"]
    assert list(net.state_dict()) == ["scale", "steps", "first.weight", "first.bias", "body.1.weight"]


def test_shared_parameters_and_modules_are_listed_once():
    net = nn.Module()
    net.a = nn.Linear(2, 2)
    net.b = net.a
    net.c = nn.Linear(2, 2)
    net.c.weight = net.a.weight
    assert [name for name, _ in net.named_parameters()] == ["a.weight", "a.bias", "c.bias"]
    assert len(list(net.modules())) == 3
    assert "b.weight" in net.state_dict()
    assert len(list(net.named_parameters(remove_duplicate=False))) == 6


def test_attributes_move_between_the_tables_they_belong_to():
    net = nn.Module()
    net.x = 3
    net.x = nn.Parameter(resilin.ones(1))
    assert [name for name, _ in net.named_parameters()] == ["x"]
    with pytest.raises(TypeError, match="a Parameter or None"):
        net.x = 5
    net.x = None
    assert list(net.parameters()) == []
    del net.x
    net.x = nn.ReLU()
    assert [name for name, _ in net.named_children()] == ["x"]
    with pytest.raises(TypeError, match="a Module or None"):
        net.x = 5
    net.register_buffer("y", resilin.ones(1))
    net.y = resilin.zeros(1)
    assert net.state_dict()["y"].item() == 0
    with pytest.raises(TypeError, match="a Tensor"):
        net.y = 5
    with pytest.raises(AttributeError, match="no attribute 'z'"):
        _ = net.z
    assert {"x", "y"} <= set(dir(net))


@pytest.mark.parametrize(
    ("act", "error", "words"),
    [
        (lambda m: m.register_buffer("a.b", None), KeyError, "contain '.'"),
        (lambda m: m.register_buffer("", None), KeyError, "empty"),
        (lambda m: m.register_parameter("forward", None), KeyError, "already has"),
        (lambda m: m.register_parameter("p", resilin.ones(1)), TypeError, "got Tensor"),
        (lambda m: m.register_buffer("b", 3), TypeError, "got int"),
        (lambda m: m.add_module("c", 3), TypeError, "got int"),
        (lambda m: m.get_submodule("first.nothing"), AttributeError, "no module 'nothing'"),
        (lambda m: m.get_parameter("first.nothing"), AttributeError, "first.nothing"),
        (lambda m: m.train("yes"), ValueError, "got str"),
        (lambda m: nn.Module()(1), NotImplementedError, "forward"),
    ],
)
def test_mistakes_in_registration_are_named(act, error, words):
    with pytest.raises(error, match=words):
        act(Net())


def test_assigning_before_init_is_refused():
    class Early(nn.Module):
        def __init__(self):
            self.layer = nn.Linear(1, 1)

    with pytest.raises(AttributeError, match=r"super\(\).__init__"):
        Early()


class Frozen(nn.Sequential):
    def train(self, mode=True):
        return super().train(False)


def test_dotted_paths_find_members():
    net = Net()
    assert net.get_submodule("body.1") is net.body[1]
    assert net.get_parameter("first.bias") is net.first.bias
    assert net.get_buffer("steps") is net.steps
    net.set_submodule("body.0", nn.Tanh())
    assert isinstance(net.body[0], nn.Tanh)


def test_train_eval_apply_and_requires_grad_reach_the_whole_tree():
    net = Net()
    assert not any(module.training for module in net.eval().modules())
    assert all(module.training for module in net.train().modules())
    net.body = Frozen(nn.Linear(2, 2))  # has a `train` of its own
    assert [module.training for module in net.train().body.modules()] == [False, False]
    net = Net()
    seen = []
    net.apply(lambda module: seen.append(type(module).__name__))
    assert seen == ["Linear", "ReLU", "Linear", "Sequential", "Net"]
    assert not any(p.requires_grad for p in net.requires_grad_(False).parameters())


def test_zero_grad_forgets_or_clears():
    net = Net()
    net(resilin.ones(1, 3)).sum().backward()
    assert net.scale.grad is not None
    net.zero_grad(set_to_none=False)
    assert net.scale.grad.item() == 0
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())


def test_to_converts_floats_only_and_keeps_parameters_identity():
    net = nn.BatchNorm1d(2)
    weight = net.weight
    assert net.to(resilin.float64) is net
    assert net.weight is weight
    assert weight.dtype is resilin.float64
    assert net.running_mean.dtype is resilin.float64
    assert net.num_batches_tracked.dtype is resilin.int64


def test_dtype_shorthands_convert_the_tree():
    net = Net()
    for name in ("double", "half", "bfloat16", "float"):
        getattr(net, name)()
        expected = {"double": resilin.float64, "half": resilin.float16, "bfloat16": resilin.bfloat16}
        assert {value.dtype for value in net.state_dict().values()} == {expected.get(name, resilin.float32)}
    assert net.cpu() is net


def test_state_dict_round_trip_gives_equal_bits():
    net, other = Net(), Net()
    assert repr(other.load_state_dict(net.state_dict())) == "<All keys matched successfully>"
    for name, value in net.state_dict().items():
        assert other.state_dict()[name].numpy().tobytes() == value.numpy().tobytes()
    other.scale.data.fill_(5)
    assert net.scale.item() == 1


def test_state_dict_shares_memory_and_is_detached():
    net = Net()
    state = net.state_dict()
    assert not state["scale"].requires_grad
    state["scale"].fill_(3)
    assert net.scale.item() == 3
    assert net.state_dict(keep_vars=True)["scale"] is net.scale


def test_load_state_dict_names_everything_that_does_not_fit():
    net = Net()
    state = net.state_dict()
    del state["first.bias"]
    state["other"] = resilin.ones(1)
    state["first.weight"] = resilin.ones(2, 3)
    state["scale"] = 3.0
    with pytest.raises(UsageError) as caught:
        net.load_state_dict(state)
    text = str(caught.value)
    assert "loading state_dict for Net" in text
    assert 'Missing key(s) in state_dict: "first.bias"' in text
    assert 'Unexpected key(s) in state_dict: "other"' in text
    assert "size mismatch for first.weight: copying a param with shape (2, 3) from checkpoint" in text
    assert "the shape in current model is (4, 3)" in text
    assert '"scale", expected a Tensor, got float' in text


def test_load_state_dict_not_strict_reports_names_but_still_refuses_shapes():
    net = Net()
    keys = net.load_state_dict({"scale": resilin.full((1,), 7.0), "other": resilin.ones(1)}, strict=False)
    assert net.scale.item() == 7
    assert keys.unexpected_keys == ["other"]
    assert keys.missing_keys == ["steps", "first.weight", "first.bias", "body.1.weight"]
    with pytest.raises(UsageError, match="scale"):
        net.load_state_dict({"scale": resilin.ones(2)}, strict=False)


def test_load_state_dict_can_assign_the_tensors_themselves():
    net, state = Net(), Net().state_dict()
    net.load_state_dict(state, assign=True)
    assert net.first.weight.data_ptr() == state["first.weight"].data_ptr()
    assert net.first.weight.requires_grad


def test_extra_state_travels_with_the_tensors():
    class Counter(nn.Module):
        count = 0

        def get_extra_state(self):
            return {"count": self.count}

        def set_extra_state(self, state):
            self.count = state["count"]

    net, other = nn.Sequential(Counter()), nn.Sequential(Counter())
    net[0].count = 4
    assert net.state_dict() == {"0._extra_state": {"count": 4}}
    other.load_state_dict(net.state_dict())
    assert other[0].count == 4
    with pytest.raises(UsageError, match="_extra_state"):
        other.load_state_dict({})


def test_state_dict_hooks_can_change_what_is_saved_and_loaded():
    net, calls = Net(), []
    net.register_state_dict_pre_hook(lambda module, prefix, keep_vars: calls.append("before"))
    net.register_state_dict_post_hook(lambda module, state, prefix, meta: state.__delitem__("steps"))
    assert "steps" not in net.state_dict()

    def rename(module, state, prefix, meta, strict, missing, unexpected, errors):
        state[prefix + "scale"] = state.pop(prefix + "old_scale")

    net.register_load_state_dict_pre_hook(rename)
    net.register_load_state_dict_post_hook(lambda module, keys: keys.missing_keys.remove("steps"))
    state = net.state_dict()
    state["old_scale"] = state.pop("scale") * 2
    net.load_state_dict(state)
    assert net.scale.item() == 2
    assert "old_scale" in state
    assert calls == ["before", "before"]


def test_forward_hooks_see_and_replace_arguments_and_results():
    layer = nn.Identity()
    before = layer.register_forward_pre_hook(lambda module, args: args[0] + 1)
    after = layer.register_forward_hook(lambda module, args, output: output * 10)
    assert layer(resilin.tensor([1.0])).item() == 20
    before.remove()
    assert layer(resilin.tensor([1.0])).item() == 10
    after.remove()
    assert layer(resilin.tensor([1.0])).item() == 1


def test_forward_hooks_with_kwargs_prepend_and_always_call():
    class Power(nn.Module):
        def forward(self, x, exponent=1):
            if exponent < 0:
                raise ValueError("negative")
            return x**exponent

    layer, order = Power(), []
    layer.register_forward_pre_hook(
        lambda m, args, kwargs: (args, {"exponent": kwargs["exponent"] + 1}), with_kwargs=True
    )
    layer.register_forward_hook(lambda m, args, output: order.append("second"))
    layer.register_forward_hook(lambda m, args, output: order.append("first"), prepend=True)
    layer.register_forward_hook(
        lambda m, a, kwargs, out: order.append(kwargs["exponent"]), with_kwargs=True, always_call=True
    )
    assert layer(resilin.tensor([2.0]), exponent=2).item() == 8
    assert order == ["first", "second", 3]
    with pytest.raises(ValueError, match="negative"):
        layer(resilin.tensor([2.0]), exponent=-5)
    assert order[3:] == [-4]


def test_full_backward_hooks_see_and_replace_gradients():
    layer, seen = nn.Linear(2, 1, bias=False), []
    layer.weight.data.copy_(resilin.tensor([[2.0, 3.0]]))

    def hook(module, grad_input, grad_output):
        seen.append((grad_input[0].tolist(), grad_output[0].tolist()))
        return (grad_input[0] * 10,)

    handle = layer.register_full_backward_hook(hook)
    x = resilin.ones(1, 2).requires_grad_()
    layer(x).sum().backward()
    assert seen == [([[2, 3]], [[1]])]
    assert x.grad.tolist() == [[20, 30]]
    handle.remove()
    x.grad = None
    layer(x).sum().backward()
    assert x.grad.tolist() == [[2, 3]]


def test_a_backward_pre_hook_replaces_the_output_gradient():
    layer = nn.Linear(2, 1, bias=False)
    layer.register_full_backward_pre_hook(lambda module, grad_output: (grad_output[0] * 0,))
    x = resilin.ones(1, 2).requires_grad_()
    layer(x).sum().backward()
    assert x.grad.tolist() == [[0, 0]]
    assert layer.weight.grad.tolist() == [[0, 0]]


def test_backward_hooks_run_when_no_input_needs_a_gradient():
    layer, seen = nn.Linear(2, 1), []
    layer.register_full_backward_hook(lambda module, gi, go: seen.append((gi, go[0].tolist())))
    layer(resilin.ones(1, 2)).sum().backward()
    assert seen == [((None,), [[1]])]


def test_modules_print_as_in_pytorch():
    assert repr(Net()) == (
        "Net(\n"
        "  (first): Linear(in_features=3, out_features=4, bias=True)\n"
        "  (body): Sequential(\n"
        "    (0): ReLU()\n"
        "    (1): Linear(in_features=4, out_features=2, bias=False)\n"
        "  )\n"
        ")"
    )
    assert repr(nn.Sequential()) == "Sequential()"


def test_modules_can_be_copied_and_pickled():
    net = Net()
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert [name for name, _ in other.named_parameters()] == [name for name, _ in net.named_parameters()]
        assert other.first.weight is not net.first.weight
        assert other.first.weight.tolist() == net.first.weight.tolist()
        other.first.weight.data.fill_(0)
        assert net.first.weight.abs().sum().item() > 0


def test_sequential_is_a_list_of_named_modules():
    net = nn.Sequential(nn.ReLU(), nn.Tanh())
    net.append(nn.Sigmoid()).insert(0, nn.Identity())
    assert [type(m).__name__ for m in net] == ["Identity", "ReLU", "Tanh", "Sigmoid"]
    assert [name for name, _ in net.named_children()] == ["0", "1", "2", "3"]
    assert isinstance(net[-1], nn.Sigmoid)
    assert [type(m).__name__ for m in net[1:3]] == ["ReLU", "Tanh"]
    net[0] = nn.Flatten()
    del net[1]
    assert [type(m).__name__ for m in net] == ["Flatten", "Tanh", "Sigmoid"]
    assert isinstance(net.pop(), nn.Sigmoid)
    assert len(net) == 2
    with pytest.raises(IndexError, match="index 5 is out of range for 2"):
        net[5]
    named = nn.Sequential({"a": nn.ReLU(), "b": nn.Tanh()})
    assert isinstance(named.b, nn.Tanh)
    assert list(named[1:].state_dict()) == []
    assert [name for name, _ in named[1:].named_children()] == ["b"]


def test_module_lists_and_dicts_register_what_they_hold():
    layers = nn.ModuleList([nn.Linear(1, 1)])
    layers += [nn.Linear(1, 1)]
    assert len(list((layers + nn.ModuleList([nn.ReLU()])).parameters())) == 4
    table = nn.ModuleDict({"x": nn.Linear(1, 1)})
    table["y"] = nn.ReLU()
    assert (list(table), "y" in table, len(table)) == (["x", "y"], True, 2)
    assert isinstance(table.pop("y"), nn.ReLU)
    assert [name for name, _ in table.named_parameters()] == ["x.weight", "x.bias"]
    table.clear()
    assert len(table) == 0


def test_a_parameter_list_registers_what_it_holds():
    values = nn.ParameterList([resilin.ones(2)])
    values.append(nn.Parameter(resilin.zeros(1)))
    assert [name for name, _ in values.named_parameters()] == ["0", "1"]
    assert values[-1].tolist() == [0]
    values[0] = resilin.zeros(3)
    assert values[0].requires_grad
    assert len(values[0:1]) == 1


@pytest.mark.parametrize("padding", [1, "same", (0, 2)])
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_conv2d_pads_from_inside(mode, padding):
    layer = nn.Conv2d(1, 2, 2, padding=padding, padding_mode=mode)
    x = resilin.randn(1, 1, 4, 5)
    pads = {1: (1, 1, 1, 1), "same": (0, 1, 0, 1), (0, 2): (2, 2, 0, 0)}[padding]
    expected = nn.functional.conv2d(nn.functional.pad(x, pads, mode), layer.weight, layer.bias)
    assert layer(x).tolist() == expected.tolist()
    assert f"padding_mode={mode}" in repr(layer)


def test_sequentials_are_added_and_repeated():
    a, b, c = nn.ReLU(), nn.Linear(2, 2), nn.Tanh()
    both = nn.Sequential(a, b) + nn.Sequential(c)
    assert type(both) is nn.Sequential
    assert list(both) == [a, b, c]
    assert list(nn.Sequential(a, b) * 2) == list(2 * nn.Sequential(a, b)) == [a, b, a, b]
    grown = whole = nn.Sequential(a)
    grown += nn.Sequential(b, c)
    grown *= 2
    assert grown is whole
    assert list(grown) == [a, b, c] * 2
    whole += whole
    assert len(whole) == 12
    with pytest.raises(ValueError, match="positive number of repetitions"):
        nn.Sequential(a) * 0
    with pytest.raises(TypeError):
        grown + 1


def test_type_converts_everything_and_to_empty_keeps_shapes_only():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm2d(3))
    first = next(model.parameters())
    assert model.type(resilin.float64) is model
    assert {value.dtype for value in model.state_dict().values()} == {resilin.float64}
    assert model.to_empty(device="sim:1") is model
    assert {str(value.device) for value in model.state_dict().values()} == {"sim:1"}
    assert next(model.parameters()) is first
    assert first.shape == (3, 2)


def test_embedding_scales_long_rows_down_where_they_are_looked_up():
    table = nn.Embedding(4, 2, max_norm=1.0)
    with resilin.no_grad():
        table.weight.copy_(resilin.tensor([[3.0, 4.0], [0.3, 0.4], [6.0, 8.0], [0.0, 5.0]]))
    out = table(resilin.tensor([[0, 1], [0, 3]]))
    expected = [[0.6, 0.8], [0.3, 0.4], [0.0, 1.0]]
    np.testing.assert_allclose(out.detach().numpy().reshape(4, 2)[[0, 1, 3]], expected, rtol=1e-6)
    np.testing.assert_allclose(table.weight.detach().numpy()[2], [6, 8])
    np.testing.assert_allclose(table.weight.detach().numpy()[0], [0.6, 0.8], rtol=1e-6)
    ones = nn.functional.embedding(resilin.tensor([1]), resilin.tensor([[0.0, 0], [3, 1]]), None, 2.0, 1.0)
    np.testing.assert_allclose(ones.numpy(), [[1.5, 0.5]], rtol=1e-6)


def test_embedding_divides_gradients_by_how_often_a_row_occurs():
    table = nn.Embedding(4, 2, padding_idx=3, scale_grad_by_freq=True)
    table(resilin.tensor([0, 1, 0, 0, 3])).backward(resilin.tensor([[3.0, 3], [1, 2], [0, 3], [0, 0], [9, 9]]))
    np.testing.assert_allclose(table.weight.grad.numpy(), [[1, 2], [1, 2], [0, 0], [0, 0]], rtol=1e-6)
    assert repr(table) == "Embedding(4, 2, padding_idx=3, scale_grad_by_freq=True)"


def test_sparse_embeddings_are_refused():
    with pytest.raises(UsageError, match="sparse"):
        nn.Embedding(4, 2, sparse=True)
    with pytest.raises(NotImplementedError, match="sparse"):
        nn.functional.embedding(resilin.tensor([1]), resilin.ones(2, 2), sparse=True)


def test_a_module_with_backward_hooks_keeps_no_input_when_its_graph_is_gone():
    layer = nn.Linear(2, 2)
    layer.register_full_backward_hook(lambda module, grad_input, grad_output: None)
    x = resilin.ones(3, 2, requires_grad=True) * 1
    array = weakref.ref(x._array)
    gc.collect()
    gc.disable()
    try:
        layer(x).sum().backward()
        del x
        assert array() is None
    finally:
        gc.enable()


def test_a_memory_format_is_for_parameters_of_images_only():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(memory_format=resilin.channels_last)
    assert net[0].weight.is_contiguous(memory_format=resilin.channels_last)
    assert net.to(resilin.float64, memory_format=resilin.channels_last)[1].weight.dtype is resilin.float64
