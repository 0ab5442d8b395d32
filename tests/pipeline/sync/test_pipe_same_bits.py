"""A pipe gives the bits of its layers called for each micro-batch in turn: results, gradients, buffers, draws."""

import threading

import pytest
from pipe_models import bits, gradients, numbers, placed, unpiped

import resilin as torch
from resilin import nn
from resilin.core import rng
from resilin.distributed.pipeline.sync import Pipe, WithDevice
from resilin.nn.parallel import DistributedDataParallel
from resilin.pipeline.sync import pipeline
from resilin.testing.ranks import run_ranks
from resilin.utils.checkpoint import checkpoint

MODES = ("always", "except_last", "never")


def mlp(parts, device="sim"):
    """Layers with dropout, in so many parts."""
    torch.manual_seed(3)
    layers = [
        nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.4)),
        nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Dropout(0.2)),
        nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.3)),
        nn.Sequential(nn.Linear(16, 2)),
    ]
    per = len(layers) // parts
    places = ["cpu" if device == "cpu" else f"sim:{i // per}" for i in range(len(layers))]
    return placed(*layers, devices=places)


def stepped(layers, forward, x):
    """One step's result, gradients of x and of all parameters, as bytes."""
    layers.zero_grad()
    x.grad = None
    torch.manual_seed(11)
    y = forward(x)
    (y.square().mean() + y.sum() * 0.1).backward()
    return [*bits([y, x.grad]), *gradients(layers)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("parts", "device"), [(1, "sim"), (2, "sim"), (4, "sim"), (4, "cpu")])
@pytest.mark.parametrize(("size", "chunks"), [(8, 4), (7, 3), (2, 4), (5, 1)])
def test_any_number_of_parts_and_any_mode_give_the_bits_of_the_layers_called_in_turn(mode, parts, device, size, chunks):
    layers = mlp(parts, device)
    x = numbers(size, 6, device="cpu" if device == "cpu" else "sim:0", requires_grad=True)
    want = stepped(layers, lambda x: unpiped(layers, x, chunks), x)
    pipe = Pipe(layers, chunks=chunks, checkpoint=mode)
    assert stepped(layers, lambda x: pipe(x).local_value(), x) == want


def test_plain_layers_give_what_they_give_without_a_pipe():
    layers = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 4), nn.Linear(4, 2), nn.Linear(2, 1))
    x = numbers(8, 1, device="cpu")
    layers(x).mean().backward()
    want = [p.grad.clone() for p in layers.parameters()]
    layers.zero_grad()
    Pipe(layers, chunks=4)(x).local_value().mean().backward()
    for found, before in zip(layers.parameters(), want, strict=True):
        assert torch.allclose(found.grad, before, rtol=1e-5)


def test_each_forward_draws_anew_and_the_same_from_the_same_seed():
    layers = mlp(2)
    pipe, x = Pipe(layers, chunks=2), numbers(4, 6)
    torch.manual_seed(5)
    first, second = (bits([pipe(x).local_value()]) for _ in range(2))
    torch.manual_seed(5)
    assert bits([pipe(x).local_value()]) == first != second


def test_a_forward_that_draws_moves_the_generator_by_one():
    pipe, x = Pipe(mlp(4), chunks=3), numbers(6, 6)
    before = rng.default_generator.offset
    pipe(x)
    assert rng.default_generator.offset == before + 1
    pipe.eval()(x)
    assert rng.default_generator.offset == before + 1


@pytest.mark.parametrize("mode", MODES)
def test_random_draws_are_the_same_when_a_part_is_computed_again(mode):
    class Dropouts(nn.Module):
        def forward(self, x):
            for _ in range(30):
                x = nn.functional.dropout(x, p=0.01)
            return x

    x = torch.rand(10, 10, requires_grad=True)
    y = Pipe(nn.Sequential(Dropouts(), Dropouts()), chunks=10, checkpoint=mode)(x).local_value()
    y.norm().backward()
    assert y.bool().tolist() == x.grad.bool().tolist()


def tied(device):
    """Three parts, the first and the last of which share a weight."""
    torch.manual_seed(3)
    first, middle, last = nn.Linear(5, 5).to(device), nn.Linear(5, 5), nn.Linear(5, 5).to(device)
    last.weight = first.weight
    return nn.Sequential(first, middle.to("cpu" if device == "cpu" else "sim:1"), last)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_gradients_of_a_weight_that_parts_share_are_summed_in_one_order(mode, device):
    layers, x = tied(device), numbers(10, 5, device=device, requires_grad=True)
    want = stepped(layers, lambda x: unpiped(layers, x, 5), x)
    pipe = Pipe(layers, chunks=5, checkpoint=mode)
    for _ in range(3):
        assert stepped(layers, lambda x: pipe(x).local_value(), x) == want


@pytest.mark.parametrize("mode", MODES)
def test_buffers_move_once_for_each_micro_batch_in_their_order(mode):
    def layers():
        torch.manual_seed(3)
        return placed(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), nn.Sequential(nn.BatchNorm1d(4)))

    plain, piped, x = layers(), layers(), numbers(9, 3, requires_grad=True)
    want = stepped(plain, lambda x: unpiped(plain, x, 3), x)
    pipe = Pipe(piped, chunks=3, checkpoint=mode)
    assert stepped(piped, lambda x: pipe(x).local_value(), x) == want
    assert bits(piped.buffers()) == bits(plain.buffers())


def test_gradients_are_those_of_grad_and_of_second_order():
    layers, x = mlp(2), numbers(6, 6, requires_grad=True)
    layers.eval()
    pipe = Pipe(layers, chunks=3)
    pipe.train()
    for dropout in (each for each in layers.modules() if isinstance(each, nn.Dropout)):
        dropout.eval()

    def second(forward):
        (g,) = torch.autograd.grad(forward(x).square().sum(), x, create_graph=True)
        return bits([g, *torch.autograd.grad(g.square().sum(), [x, layers[0][0].weight])])

    assert second(lambda x: pipe(x).local_value()) == second(lambda x: unpiped(layers, x, 3))


def test_a_pipe_inside_a_checkpoint_is_computed_again_as_it_was():
    layers, x = mlp(4), numbers(6, 6, requires_grad=True)
    pipe = Pipe(layers, chunks=3)
    want = stepped(layers, lambda x: pipe(x).local_value(), x)
    again = stepped(layers, lambda x: checkpoint(lambda x: pipe(x).local_value(), x, use_reentrant=False), x)
    assert again == want


def test_hooks_on_saved_tensors_see_those_of_all_parts():
    layers, x = mlp(4), numbers(6, 6, requires_grad=True)
    pipe = Pipe(layers, chunks=3, checkpoint="never")
    want = stepped(layers, lambda x: pipe(x).local_value(), x)
    packed = []

    def forward(x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.device) or t, lambda t: t):
            return pipe(x).local_value()

    assert stepped(layers, forward, x) == want
    assert {str(device) for device in packed} >= {"sim:0", "sim:1", "sim:2", "sim:3"}


def test_parts_that_share_nothing_compute_side_by_side_and_others_do_not():
    both = threading.Barrier(2)

    class Meet(nn.Module):
        """Returns when the other part computes, too; for as many micro-batches as there are cycles of both."""

        def __init__(self, alone):
            super().__init__()
            self.calls, self.alone = 0, alone

        def forward(self, x):
            self.calls += 1
            if self.calls != self.alone:
                both.wait(timeout=30)
            return x

    Pipe(nn.Sequential(Meet(alone=1), Meet(alone=3)), chunks=3)(torch.ones(3, 1))
    shared = nn.Linear(1, 1)
    threads = set()

    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.held = shared

        def forward(self, x):
            threads.add(threading.current_thread())
            return self.held(x)

    Pipe(nn.Sequential(Holder(), Holder()), chunks=3)(torch.ones(3, 1))
    assert threads == {threading.current_thread()}


def test_synchronized_batch_normalization_keeps_the_order_of_its_collectives():
    layers = [nn.SyncBatchNorm(2), nn.SyncBatchNorm(2)]
    assert pipeline.must_alternate(layers, [torch.device("cpu")] * 2)
    assert not pipeline.must_alternate([nn.BatchNorm1d(2), nn.BatchNorm1d(2)], [torch.device("cpu")] * 2)


def test_a_pipe_works_under_inference_mode_and_on_another_default_device():
    class Make(nn.Module):
        def forward(self, x):
            made.append(torch.ones(1).device)
            return x + 1

    made = []
    pipe = Pipe(nn.Sequential(WithDevice(Make(), "sim:0"), WithDevice(Make(), "sim:1")), chunks=2)
    with torch.inference_mode(), torch.device("sim:2"):
        y = pipe(numbers(4, 1)).local_value()
    assert y.is_inference()
    assert {str(device) for device in made} == {"sim:2"}


def test_values_under_a_level_of_vmap_stay_in_its_thread():
    pipe = Pipe(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), chunks=2)
    x = numbers(5, 4, 3, device="cpu")
    y = torch.vmap(lambda x: pipe(x).local_value())(x)
    assert torch.allclose(y, torch.stack([pipe(each).local_value() for each in x]), atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}, {"static_graph": True}], ids=str)
def test_replicas_of_a_pipe_have_the_gradients_of_replicas_of_its_layers(options):
    def gradients_of(rank, wrap):
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
        model, x = DistributedDataParallel(wrap(layers), **options), numbers(4, 3, device="cpu", seed=rank)
        y = model(x)
        (y.local_value() if wrap is piped else y).square().mean().backward()
        return gradients(layers)

    def piped(layers):
        return Pipe(layers, chunks=2)

    class InTurn(nn.Module):
        def __init__(self, layers):
            super().__init__()
            self.layers = layers

        def forward(self, x):
            return unpiped(self.layers, x, 2)

    assert run_ranks(2, gradients_of, piped).values == run_ranks(2, gradients_of, InTurn).values
