"""What Pipe takes, refuses, and looks like: torchgpipe's and PyTorch's tests of it, by what they prove."""

import pickle
from collections import OrderedDict
from copy import deepcopy

import pytest
from pipe_models import checkpoints, numbers, placed

import resilin as torch
from resilin import nn
from resilin.distributed.pipeline.sync import NoChunk, Pipe, WithDevice
from resilin.errors import UsageError
from resilin.pipeline.sync import partitions
from resilin.pipeline.sync.utils import partition_model


def run(pipe, *inputs):
    return pipe(*inputs).local_value()


def test_a_pipe_has_the_parameters_of_its_layers():
    layers = nn.Sequential(nn.Linear(1, 1))
    pipe = Pipe(layers, chunks=1)
    assert list(pipe.parameters()) != []
    assert all(a is b for a, b in zip(pipe.parameters(), layers.parameters(), strict=True))


def test_arguments_are_converted_and_kept():
    class Text:
        def __str__(self):
            return "always"

    pipe = Pipe(nn.Sequential(nn.Linear(1, 1)), chunks=42.0, checkpoint=Text())
    assert (pipe.chunks, type(pipe.chunks), pipe.checkpoint, type(pipe.checkpoint)) == (42, int, "always", str)
    assert pipe.devices == [torch.device("cpu")]


def test_a_pipe_is_listed_like_a_sequential():
    a, b, c = nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)
    pipe = Pipe(nn.Sequential(a, b, c))
    assert len(pipe) == 3
    assert list(pipe) == [a, b, c]
    assert [pipe[0], pipe[1], pipe[2], pipe[-1], pipe[-3]] == [a, b, c, c, a]
    with pytest.raises(IndexError):
        pipe[3]
    with pytest.raises(IndexError):
        pipe[-4]


@pytest.mark.parametrize("chunks", [0, -1])
def test_fewer_than_one_chunk_is_refused(chunks):
    with pytest.raises(ValueError, match="number of chunks must be positive integer"):
        Pipe(nn.Sequential(), chunks=chunks)


@pytest.mark.parametrize(("size", "chunks"), [(7, 4), (2, 4), (1, 4), (5, 5)])
def test_a_batch_may_be_indivisible_by_the_chunks_and_smaller(size, chunks):
    layers = placed(nn.Linear(3, 3), nn.Linear(3, 3))
    x = numbers(size, 3)
    y = run(Pipe(layers, chunks=chunks), x)
    assert y.shape == (size, 3)
    y.mean().backward()
    assert layers[0].weight.grad is not None


@pytest.mark.parametrize(("mode", "count"), [("always", 2), ("except_last", 1), ("never", 0)])
def test_the_mode_says_which_micro_batches_are_computed_again(mode, count):
    pipe = Pipe(nn.Sequential(nn.Linear(1, 1)), chunks=2, checkpoint=mode)
    assert checkpoints(run(pipe, torch.rand(2, 1))) == count


@pytest.mark.parametrize(("mode", "count"), [("always", 1), ("except_last", 0), ("never", 0)])
def test_the_last_micro_batch_is_the_last_of_a_small_batch(mode, count):
    pipe = Pipe(nn.Sequential(nn.Linear(1, 1)), chunks=8, checkpoint=mode)
    assert checkpoints(run(pipe, torch.rand(1, 1))) == count


def test_another_mode_is_refused():
    with pytest.raises(ValueError, match="checkpoint is not one of 'always', 'except_last', or 'never'"):
        Pipe(nn.Sequential(nn.Linear(1, 1)), checkpoint="INVALID_CHECKPOINT")


def test_nothing_is_computed_again_in_evaluation():
    pipe = Pipe(nn.Sequential(nn.Linear(1, 1)), chunks=2, checkpoint="always")
    assert checkpoints(run(pipe, torch.rand(2, 1))) == 2
    pipe.eval()
    y = run(pipe, torch.rand(2, 1))
    assert y.requires_grad
    assert checkpoints(y) == 0


def test_micro_batches_may_have_values_that_are_no_floats():
    class ForkNonFloat(nn.Module):
        def forward(self, x):
            return x * 2, torch.tensor([False])

    class JoinNonFloat(nn.Module):
        def forward(self, x, _):
            return x * 2

    pipe = Pipe(nn.Sequential(ForkNonFloat(), JoinNonFloat()), chunks=1, checkpoint="always")
    x = torch.rand(1, requires_grad=True)
    run(pipe, x).backward()
    assert x.grad.tolist() == [4.0]


def test_nothing_is_recorded_under_no_grad():
    layers = nn.Sequential(nn.Linear(1, 1))
    kept = []
    layers.register_forward_hook(lambda *_: None)
    layers[0].register_forward_hook(lambda _module, _inputs, out: kept.append(out))
    with torch.no_grad():
        y = run(Pipe(layers, chunks=2, checkpoint="always"), torch.rand(2, 1))
    assert not y.requires_grad
    assert len(kept) == 2
    assert all(out.grad_fn is None for out in kept)


def test_parts_may_be_on_several_devices():
    pipe = Pipe(placed(nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)), chunks=3)
    assert [str(device) for device in pipe.devices] == ["sim:0", "sim:1", "sim:2"]
    assert run(pipe, numbers(3, 1)).device == torch.device("sim:2")


def test_parts_are_named_by_their_number_and_that_of_the_layer():
    a, b = nn.Linear(1, 1), nn.Linear(1, 1)
    pipe = Pipe(nn.Sequential(a, b))
    assert isinstance(pipe.partitions, nn.ModuleList)
    assert isinstance(pipe.partitions[0], nn.Sequential)
    assert "partitions.0.0.weight" in pipe.state_dict()
    assert "partitions.1.0.weight" in pipe.state_dict()


def test_neighbours_on_one_device_are_one_part():
    a, b, c, d, e = (nn.Linear(1, 1) for _ in range(5))
    devices = ["sim:0", "sim:0", "cpu", "cpu", "sim:1"]
    pipe = Pipe(placed(a, b, c, nn.Sequential(d, nn.Tanh()), e, devices=devices))
    assert [[type(layer).__name__ for layer in part] for part in pipe.partitions] == [
        ["Linear", "Linear"],
        ["Linear"],
        ["Linear", "Tanh"],
        ["Linear"],
    ]
    assert "partitions.2.0.weight" in pipe.state_dict()
    assert run(pipe, numbers(2, 1)).device == torch.device("sim:1")


def test_a_sequential_with_a_forward_of_its_own_stays_whole():
    class Doubling(nn.Sequential):
        def forward(self, x):
            return super().forward(x) * 2

    pipe = Pipe(nn.Sequential(Doubling(nn.Identity()), nn.Sequential(nn.Identity(), nn.Identity())))
    assert [len(part) for part in pipe.partitions] == [1, 2]
    assert run(pipe, torch.ones(1)).tolist() == [2.0]


def test_parts_are_not_moved():
    pipe = Pipe(placed(nn.Linear(1, 1), nn.Linear(1, 1)))
    denied = [
        lambda: pipe.cuda(),
        lambda: pipe.cpu(),
        lambda: pipe.to(torch.device("cpu")),
        lambda: pipe.to(0),
        lambda: pipe.to("cpu"),
        lambda: pipe.to(device="cpu"),
        lambda: pipe.to(torch.rand(1)),
        lambda: pipe.to_empty(device="cpu"),
    ]
    for move in denied:
        with pytest.raises(TypeError, match="denied to move parameters and buffers"):
            move()
    assert pipe.to(torch.float64)[0].weight.dtype == torch.float64
    assert pipe.half()[1].weight.dtype == torch.float16
    assert pipe.devices == [torch.device("sim:0"), torch.device("sim:1")]


def test_an_empty_sequential_gives_its_input():
    pipe = Pipe(nn.Sequential())
    assert run(pipe, torch.tensor(42)).item() == 42
    assert run(pipe, torch.tensor(42), 1)[1] == 1


def test_children_keep_no_names_but_their_order():
    pipe = Pipe(nn.Sequential(OrderedDict([("a", nn.Linear(1, 1)), ("b", nn.Linear(1, 1))])))
    names = {name for name, _ in pipe.named_modules()}
    assert {"partitions.0.0", "partitions.1.0"} <= names
    with pytest.raises(AttributeError):
        pipe.a  # noqa: B018


def test_what_is_no_sequential_is_refused():
    with pytest.raises(TypeError, match=r"module must be nn.Sequential to be partitioned, got ModuleList"):
        Pipe(nn.ModuleList([nn.Linear(1, 1)]))


def test_duplicate_children_are_refused():
    layer = nn.Linear(1, 1)
    with pytest.raises(ValueError, match="module with duplicate children is not supported"):
        Pipe(nn.Sequential(layer, layer))


class Mixed(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(1, 1).to(first), nn.Linear(1, 1).to(second)

    def forward(self, x):
        return self.fc2(self.fc1(x))


def test_a_layer_on_several_devices_is_refused():
    with pytest.raises(ValueError, match=r"should have all parameters on a single device, .*: found cpu, sim:0"):
        Pipe(nn.Sequential(Mixed("cpu", "sim:0"), nn.Linear(1, 1)))


def test_a_nested_layer_on_one_device_is_taken():
    pipe = Pipe(nn.Sequential(Mixed("sim:0", "sim:0"), Mixed("sim:1", "sim:1")), chunks=2)
    run(pipe, numbers(4, 1)).sum().backward()
    assert pipe[1].fc2.weight.grad.device == torch.device("sim:1")


def test_parameters_shared_across_devices_are_refused_before_anything_is_moved():
    conv = nn.Linear(1, 1).to("sim:0")
    again = nn.Linear(1, 1).to("sim:0")
    again.weight = conv.weight
    layers = nn.Sequential(conv, WithDevice(again, "sim:1"))
    with pytest.raises(
        ValueError, match=r"duplicate parameters on distinct devices is not supported: partitions 0 \(sim:0"
    ):
        Pipe(layers)
    assert conv.weight.device == torch.device("sim:0")


def test_parts_on_several_gpus_of_one_process_are_refused_with_the_way_that_works():
    class Gpu:
        type = "cuda"

        def __init__(self, index):
            self.index = index

        def __str__(self):
            return f"cuda:{self.index}"

    one, two = Gpu(0), Gpu(1)
    partitions._refuse_gpus([partitions.Partition([], one), partitions.Partition([], one)])
    with pytest.raises(UsageError, match=r"cuda:0, cuda:1: run a process .* resilin.distributed.pipelining"):
        partitions._refuse_gpus([partitions.Partition([], one), partitions.Partition([], two)])


def test_inputs_on_another_device_than_the_first_part_are_refused():
    pipe = Pipe(placed(nn.Linear(1, 1), nn.Linear(1, 1)))
    message = "All inputs should be on the same device as the first partition: expected sim:0, got cpu for input"
    for inputs in ((torch.rand(1, 1),), (numbers(1, 1), torch.rand(1, 1)), (numbers(1, 1), NoChunk(torch.rand(1)))):
        with pytest.raises(ValueError, match=message):
            pipe(*inputs)


def test_a_layer_without_parameters_runs_where_it_is_said_to():
    dropout = nn.Dropout(0.5)
    pipe = Pipe(nn.Sequential(nn.Linear(4, 4).to("sim:0"), WithDevice(dropout, "sim:1"), nn.Linear(4, 4).to("sim:1")))
    assert [[type(layer).__name__ for layer in part] for part in pipe.partitions] == [["Linear"], ["Dropout", "Linear"]]
    assert pipe[1] is dropout
    unsaid = Pipe(nn.Sequential(nn.Linear(4, 4).to("sim:0"), nn.Dropout(0.5), nn.Linear(4, 4).to("sim:1")))
    assert [str(device) for device in unsaid.devices] == ["sim:0", "cpu", "sim:1"]


def test_a_layer_is_moved_to_where_it_is_said_to_run():
    layers = nn.Sequential(WithDevice(nn.Linear(1, 1), "sim:3"), WithDevice(nn.BatchNorm1d(1), torch.device("sim:2")))
    pipe = Pipe(layers, deferred_batch_norm=True)
    assert [str(device) for device in pipe.devices] == ["sim:3", "sim:2"]
    assert str(pipe[1].running_mean.device) == "sim:2"
    assert run(pipe, numbers(3, 1, device="sim:3")).device == torch.device("sim:2")


def test_shapes_may_change_from_batch_to_batch():
    pipe = Pipe(placed(nn.Linear(3, 3), nn.Linear(3, 3)), chunks=2)
    for shape in ((4, 3), (2, 5, 3), (7, 3)):
        assert run(pipe, numbers(*shape)).shape == shape


def test_a_pipe_is_copied_and_pickled_with_its_parts():
    pipe = Pipe(placed(nn.Linear(2, 2), nn.Linear(2, 2)), chunks=2)
    x = numbers(4, 2)
    for twin in (deepcopy(pipe), pickle.loads(pickle.dumps(pipe))):
        assert twin[0] is not pipe[0]
        assert torch.equal(run(twin, x), run(pipe, x))


def test_state_goes_from_one_pipe_to_another():
    first, second = (Pipe(placed(nn.Linear(2, 2), nn.Linear(2, 2)), chunks=2) for _ in range(2))
    second.load_state_dict(first.state_dict())
    assert torch.equal(run(first, numbers(4, 2)), run(second, numbers(4, 2)))


def test_layers_are_put_onto_devices_by_a_balance():
    layers = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1))
    pipe = Pipe(partition_model(layers, [1, 2], ["sim:0", "sim:1"]), chunks=2)
    assert [len(part) for part in pipe.partitions] == [1, 2]
    assert [str(device) for device in pipe.devices] == ["sim:0", "sim:1"]
    for balance, devices in (([1, 1], ["sim:0", "sim:1"]), ([3, 0], ["sim:0", "sim:1"]), ([1, 2], ["sim:0"])):
        with pytest.raises(ValueError, match="partition_model: expected"):
            partition_model(layers, balance, devices)
