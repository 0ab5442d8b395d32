"""Parts are computed again in backward: in which order, with what, and what modules are told of it."""

import functools

import pytest
from pipe_models import numbers, placed

import resilin as torch
from resilin import nn
from resilin.distributed.pipeline.sync import Pipe, is_checkpointing, is_recomputing
from resilin.pipeline.sync.checkpoint import checkpoint


def test_checkpoints_are_computed_again_one_after_the_other():
    timeline = []

    class Log(torch.autograd.Function):
        @staticmethod
        def forward(ctx, name, x):
            ctx.name = name
            timeline.append(f"{name}:forward")
            return x.detach()

        @staticmethod
        def backward(ctx, g):
            ctx.saved_tensors  # noqa: B018 - what was not kept is brought back
            timeline.append(f"{ctx.name}:backward")
            return None, g

    a, b = torch.rand(1, requires_grad=True), torch.rand(1, requires_grad=True)
    a = checkpoint(functools.partial(Log.apply, "a"), a)
    b = checkpoint(functools.partial(Log.apply, "b"), b)
    torch.cat((a, b)).sum().backward()
    assert timeline == ["a:forward", "b:forward", "b:forward", "b:backward", "a:forward", "a:backward"]


def test_an_argument_need_not_require_gradients():
    x, y = torch.rand(1), torch.rand(1, requires_grad=True)
    out = checkpoint(lambda a, b: a * b, x, y)
    out.backward()
    assert torch.equal(y.grad, x)
    assert not checkpoint(lambda a: a * 2, x).requires_grad


class Ask(nn.Module):
    def __init__(self):
        super().__init__()
        self.told = []
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        self.told.append((is_checkpointing(), is_recomputing()))
        return x * self.weight * self.weight


@pytest.mark.parametrize(
    ("mode", "training", "told"),
    [
        ("always", True, [(True, False), (True, False), (False, True), (False, True)]),
        ("except_last", True, [(True, False), (False, False), (False, True)]),
        ("never", True, [(False, False), (False, False)]),
        ("always", False, [(False, False), (False, False)]),
    ],
)
def test_modules_are_told_which_run_they_are_in(mode, training, told):
    ask = Ask()
    pipe = Pipe(nn.Sequential(ask), chunks=2, checkpoint=mode).train(training)
    pipe(torch.rand(2, 1)).local_value().sum().backward()
    assert ask.told == told
    assert not is_checkpointing()
    assert not is_recomputing()


def test_nothing_is_told_without_gradients():
    ask = Ask()
    with torch.no_grad():
        Pipe(nn.Sequential(ask), checkpoint="always")(torch.rand(2, 1))
    assert ask.told == [(False, False)]


def test_the_words_are_taken_back_when_a_part_fails():
    def fails(x):
        assert is_checkpointing()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        checkpoint(fails, torch.rand(1, requires_grad=True))
    assert not is_checkpointing()


@pytest.mark.parametrize("mode", ["always", "except_last", "never"])
def test_in_place_operations_inside_of_a_part_are_right_in_every_mode(mode):
    layers = placed(nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True)), nn.Linear(2, 2))
    x = numbers(4, 2, requires_grad=True)
    Pipe(layers, chunks=2, checkpoint=mode)(x).local_value().sum().backward()
    found, x.grad = x.grad, None
    layers[1](layers[0](x).to("sim:1")).sum().backward()
    assert torch.equal(found, x.grad)


class WritesItsArgument(nn.Module):
    def forward(self, foo, bar):
        bar.add_(1)
        return foo * bar


def test_a_part_that_writes_its_argument_is_right_where_it_is_not_computed_again():
    foo, bar = torch.tensor([1.0], requires_grad=True), torch.tensor([1.0])
    Pipe(nn.Sequential(WritesItsArgument()), checkpoint="never")(foo, bar).local_value().backward()
    assert foo.grad.item() == 2.0


def test_a_part_that_writes_its_argument_is_refused_where_it_is_computed_again():
    foo, bar = torch.tensor([1.0], requires_grad=True), torch.tensor([1.0])
    y = Pipe(nn.Sequential(WritesItsArgument()), checkpoint="always")(foo, bar).local_value()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    assert foo.grad is None


def test_one_micro_batch_is_computed_again_at_a_time():
    alive, most = set(), []

    class Held(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            if is_recomputing():
                alive.add(id(ctx))
                most.append(len(alive))
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            ctx.saved_tensors  # noqa: B018 - brings back what was saved
            alive.clear()
            return g

    class Holds(nn.Module):
        def forward(self, x):
            return Held.apply(x)

    x = torch.rand(6, 1, requires_grad=True)
    Pipe(nn.Sequential(Holds(), Holds()), chunks=6, checkpoint="always")(x).local_value().sum().backward()
    assert most == [1] * 12
