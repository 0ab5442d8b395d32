"""Parts compute in threads, in clock cycles; when one fails the others end with what they are at."""

import threading
import time

import pytest
from pipe_models import numbers, placed

import resilin as torch
from resilin import nn
from resilin.distributed.pipeline.sync import Pipe, is_recomputing
from resilin.pipeline.sync.pipeline import clock_cycles, one_by_one
from resilin.pipeline.sync.worker import Workers


def running():
    return [thread for thread in threading.enumerate() if thread.name.startswith("resilin-pipeline")]


def test_cycles_are_the_diagonals_of_micro_batches_and_parts():
    assert list(clock_cycles(1, 1)) == [[(0, 0)]]
    assert list(clock_cycles(1, 3)) == [[(0, 0)], [(0, 1)], [(0, 2)]]
    assert list(clock_cycles(3, 1)) == [[(0, 0)], [(1, 0)], [(2, 0)]]
    assert list(clock_cycles(3, 3)) == [
        [(0, 0)],
        [(1, 0), (0, 1)],
        [(2, 0), (1, 1), (0, 2)],
        [(2, 1), (1, 2)],
        [(2, 2)],
    ]
    assert list(clock_cycles(4, 2)) == [[(0, 0)], [(1, 0), (0, 1)], [(2, 0), (1, 1)], [(3, 0), (2, 1)], [(3, 1)]]
    assert list(one_by_one(2, 2)) == [[(0, 0)], [(0, 1)], [(1, 0)], [(1, 1)]]


def test_parts_keep_step():
    timeline = []

    class DelayedLog(nn.Module):
        def __init__(self, j, seconds):
            super().__init__()
            self.i, self.j, self.seconds = 0, j, seconds

        def forward(self, x):
            time.sleep(self.seconds)
            timeline.append((self.i, self.j))
            self.i += 1
            return x

    Pipe(nn.Sequential(DelayedLog(0, seconds=0), DelayedLog(1, seconds=0.1)), chunks=3)(torch.rand(3, 1))
    assert timeline == [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (2, 1)]


def test_tasks_run_in_threads_of_their_own_at_the_same_time():
    meeting = threading.Barrier(3)

    def task():
        meeting.wait(timeout=30)
        return threading.current_thread().name

    with Workers(3) as workers:
        first, second = (workers.run(dict.fromkeys(range(3), task)) for _ in range(2))
    assert first == second
    assert len(set(first.values())) == 3


def test_results_come_back_by_their_numbers():
    with Workers(2) as workers:
        assert workers.run({5: lambda: "five", 2: lambda: None}) == {2: None, 5: "five"}
        assert workers.run({}) == {}


def test_the_error_of_the_first_of_several_tasks_is_raised_and_the_others_are_waited_for():
    ended = []

    def late():
        time.sleep(0.05)
        ended.append(1)

    def fails(error):
        raise error

    with Workers(3) as workers:
        with pytest.raises(KeyError, match="one"):
            workers.run({0: late, 1: lambda: fails(KeyError("one")), 2: lambda: fails(ValueError("two"))})
        assert ended == [1]
        assert workers.run({0: lambda: 7}) == {0: 7}


def test_threads_end_with_their_owner():
    with Workers(2) as workers:
        assert len(running()) == 2
    assert running() == []

    def leave():
        with workers:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave()
    assert running() == []


@pytest.mark.parametrize("enabled", [True, False])
def test_tasks_record_when_their_owner_does(enabled):
    with torch.set_grad_enabled(enabled), Workers(2) as workers:
        assert set(workers.run(dict.fromkeys(range(2), torch.is_grad_enabled)).values()) == {enabled}


class ExpectedError(Exception):
    pass


class Raise(nn.Module):
    def forward(self, x):
        raise ExpectedError("in the part")


class Pass(nn.Module):
    def forward(self, x):
        return x


def test_an_error_of_a_part_is_raised_with_where_it_was_and_no_thread_is_left():
    pipe = Pipe(nn.Sequential(Pass(), Pass(), Raise()), chunks=3)
    with pytest.raises(ExpectedError, match="in the part") as caught:
        pipe(torch.rand(3, 1))
    assert (caught.traceback[-1].name, str(caught.traceback[-1].path)) == ("forward", __file__)
    assert running() == []


def test_parts_before_the_failed_one_end_with_their_current_micro_batch():
    counter = 0

    class Counter(nn.Module):
        def forward(self, x):
            time.sleep(0.1)
            nonlocal counter
            counter += 1
            return x

    with pytest.raises(ExpectedError):
        Pipe(nn.Sequential(Pass(), Pass(), Counter(), Raise()), chunks=3)(torch.rand(10, 10))
    assert counter == 2


def test_a_pipe_goes_on_after_an_error():
    class Once(nn.Module):
        fails = True

        def forward(self, x):
            if self.fails:
                raise ExpectedError
            return x

    once = Once()
    pipe = Pipe(nn.Sequential(Pass(), once), chunks=3)
    with pytest.raises(ExpectedError):
        pipe(torch.rand(3, 1))
    once.fails = False
    x = torch.rand(3, 1)
    assert torch.equal(pipe(x).local_value(), x)


def test_an_error_while_a_part_is_computed_again_is_raised_by_backward():
    class Second(nn.Module):
        def forward(self, x):
            if is_recomputing():
                raise ExpectedError
            return x * x

    y = Pipe(nn.Sequential(Second()), chunks=2, checkpoint="always")(torch.rand(2, 1, requires_grad=True)).local_value()
    with pytest.raises(ExpectedError):
        y.sum().backward()


def test_functions_with_a_backward_of_their_own_work_in_threads():
    class Identity(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, g):
            return g

    class M(nn.Module):
        def forward(self, x):
            return Identity.apply(x)

    x = torch.rand(42, requires_grad=True)
    y = Pipe(nn.Sequential(M(), M()), checkpoint="always", chunks=2)(x).local_value()
    assert torch.equal(x, y)
    y.sum().backward()
    assert torch.equal(x.grad, torch.ones(42))


def test_every_value_between_parts_is_on_the_device_of_the_next_and_so_are_its_gradients():
    seen = []

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, a, b, extra):
            here = self.weight.device
            seen.append((a.device, b.device, extra["c"][0].device) == (here,) * 3)
            for value in (a, b):
                value.register_hook(lambda g, here=here: seen.append(g.device == here))
            return a * self.weight, b * 2 * self.weight, extra

    layers = placed(Two(), Two())
    a, b = numbers(4, 1, requires_grad=True), numbers(4, 1, requires_grad=True)
    x, y, _ = Pipe(layers, chunks=2)(a, b, {"c": [torch.ones(1).to("sim:0")]}).local_value()
    (x.sum() + y.sum()).backward()
    assert a.grad.tolist() == [[1.0]] * 4
    assert b.grad.tolist() == [[4.0]] * 4
    assert all(seen)
    assert len(seen) > 8
