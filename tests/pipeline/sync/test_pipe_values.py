"""What goes in and out of a pipe and between its partitions: one tensor, several values, values that are no tensors."""

import pipe_models
import pytest
from pipe_models import numbers, placed

import resilin as torch
from resilin import nn
from resilin.distributed.pipeline.sync import NoChunk, Pipe, PipeSequential, WithDevice


def run(pipe, *inputs):
    return pipe(*inputs).local_value()


def test_a_tuple_between_layers_is_their_arguments_and_a_list_is_one():
    class Pair(nn.Module):
        def forward(self, a, b):
            return a + 1, b * 2

    class Sum(nn.Module):
        def forward(self, a, b):
            return [a, b]

    class Count(nn.Module):
        def forward(self, values):
            return values[0] + values[1]

    sequential = PipeSequential(Pair(), Sum(), Count())
    assert sequential(torch.ones(1), torch.ones(1)).tolist() == [4.0]
    pipe = Pipe(nn.Sequential(PipeSequential(Pair(), Sum(), Count())), chunks=2)
    assert run(pipe, torch.ones(4), torch.ones(4)).tolist() == [4.0] * 4


def test_several_values_go_in_and_out():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc_a, self.fc_b = nn.Linear(1, 1), nn.Linear(1, 1)

        def forward(self, a, b):
            return self.fc_a(a), self.fc_b(b)

    pipe = Pipe(placed(Two(), Two()), chunks=2)
    a, b = numbers(10, 1, requires_grad=True), numbers(10, 1, requires_grad=True)
    y = run(pipe, a, b)
    assert type(y) is tuple
    assert [part.shape for part in y] == [(10, 1), (10, 1)]
    (y[0] + y[1]).mean().backward()
    assert a.grad is not None
    assert b.grad is not None


def test_a_tuple_of_one_stays_one():
    class One(nn.Module):
        def forward(self, a):
            return (a * 2,)

    y = run(Pipe(nn.Sequential(One()), chunks=2), torch.ones(4, 1))
    assert type(y) is tuple
    assert len(y) == 1


@pytest.mark.parametrize("bad", ["hello", 7, ["hello"], ("hello",), (), None, {"a": 1}])
def test_inputs_and_outputs_without_a_tensor_are_refused(bad):
    class Bad(nn.Module):
        def forward(self, _):
            return bad

    with pytest.raises(TypeError, match="inputs do not have any tensors"):
        Pipe(nn.Sequential(nn.Linear(1, 1)))(bad)
    with pytest.raises(TypeError, match="No tensors found in batch"):
        Pipe(nn.Sequential(Bad()))(torch.ones(1, 1))


def test_values_that_are_no_tensors_go_into_each_micro_batch_and_come_out_as_lists():
    seen = []

    class Scale(nn.Module):
        def forward(self, x, factor, extra):
            seen.append((len(x), factor, extra))
            return x * factor, factor + len(x), extra

    x = numbers(5, 1, device="cpu")
    y, factors, extras = run(Pipe(nn.Sequential(Scale(), Scale()), chunks=2), x, 3, None)
    assert torch.equal(y[:3], x[:3] * 3 * 6)
    assert (factors, extras) == ([9, 7], [None, None])
    assert sorted(seen, key=lambda each: each[1]) == [(3, 3, None), (2, 3, None), (2, 5, None), (3, 6, None)]


def test_what_nochunk_wraps_is_not_cut():
    class Add(nn.Module):
        def forward(self, x, mask):
            assert mask.shape == (2,)
            return x + mask, mask

    class Take(nn.Module):
        def forward(self, x, mask):
            return x * mask

    layers = nn.Sequential(WithDevice(Add(), "sim:0"), WithDevice(Take(), "sim:1"))
    mask = torch.tensor([1.0, 2.0]).to("sim:0").requires_grad_()
    y = run(Pipe(layers, chunks=3), numbers(6, 2), NoChunk(mask))
    y.sum().backward()
    want = torch.tensor([1.0, 2.0]).to("sim:0").requires_grad_()
    x = numbers(6, 2)
    torch.cat([(part + want) * want for part in x.chunk(3)]).sum().backward()
    assert pipe_models.bits([mask.grad]) == pipe_models.bits([want.grad])


def test_nochunk_takes_tensors_alone():
    with pytest.raises(TypeError, match="NoChunk only supported for tensors, found: 'a'"):
        NoChunk("a")


def test_micro_batches_that_are_not_alike_are_refused():
    class Unlike(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x, 1 if self.calls == 1 else "one"

    with pytest.raises(TypeError, match=r"do not match, found: \(Tensor, int\) of micro-batch 0 and \(Tensor, str\)"):
        Pipe(nn.Sequential(Unlike()), chunks=2)(torch.ones(2, 1))


def test_inputs_that_give_different_numbers_of_micro_batches_are_refused():
    with pytest.raises(RuntimeError, match="Found different number of chunks produced for inputs: 2 of input 0 and 1"):
        Pipe(nn.Sequential(nn.Bilinear(1, 1, 1)), chunks=2)(torch.ones(2, 1), torch.ones(1, 1))


def test_a_buffer_that_is_handed_on_is_that_of_its_micro_batch():
    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count += 1
            return x, {"count": self.count}

    class Used(nn.Module):
        def forward(self, x, rest):
            return x * rest["count"]

    model = Pipe(nn.Sequential(Counted(), Used()), chunks=4, checkpoint="never")
    assert model(torch.ones(4)).local_value().tolist() == [1, 2, 3, 4]
