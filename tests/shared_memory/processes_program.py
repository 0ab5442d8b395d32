"""What processes that share tensors do, for test_processes.py: `python processes_program.py METHOD` says "done"."""

from __future__ import annotations

import gc
import os
import signal
import sys

import resilin as torch
import resilin.multiprocessing as mp
from resilin import nn

WAIT_S = 60.0
STEPS = 50


def train(number, model, lock, answers, may_end):
    """Hogwild, with a lock so that no step is lost; then say what is there, and write once more."""
    torch.manual_seed(number)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(STEPS):
        x = torch.randn(8, 2)
        with lock:
            optimizer.zero_grad()
            ((model(x) - x.sum(1, keepdim=True)) ** 2).mean().backward()
            optimizer.step()
            model.steps += 1
    answers.put((number, model.weight.detach(), torch.full((3000,), float(number))))
    assert may_end.poll(WAIT_S)


def raise_or_wait(number):
    """The second fails, the others would take long."""
    if number == 1:
        raise ValueError("the second cannot go on: \x1b[31m")
    signal.pause()


def leave(number, how):
    """End in another way."""
    if how == "code":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL)


def square(x):
    """In a pool."""
    return x * x


def hogwild(method):
    context = mp.get_context(method)
    model = nn.Linear(2, 1)
    model.register_buffer("steps", torch.zeros(()))
    model.share_memory()
    lock, answers = context.Lock(), context.Queue()
    may_end, end = context.Pipe(duplex=False)  # no Event, which a killed process would leave waiting for it
    workers = mp.start_processes(train, (model, lock, answers, may_end), nprocs=2, join=False, start_method=method)
    got = [answers.get(timeout=WAIT_S) for _ in range(2)]
    assert float(model.steps) == 2 * STEPS  # every write of the others is seen here
    assert (model.weight - 1).abs().max() < 0.1, model.weight
    assert sorted(number for number, *_ in got) == [0, 1]
    for number, weight, own in got:
        assert weight.data_ptr() == model.weight.data_ptr()
        assert own.is_shared()
        assert own.tolist() == [float(number)] * 3000
    killed = workers.processes[0]
    os.kill(killed.pid, signal.SIGKILL)
    killed.join(WAIT_S)
    end.send(True)
    for number, _, own in got:  # also what a dead process had made
        own += 1
        assert own.tolist() == [number + 1.0] * 3000
    error = error_of(mp.ProcessExitedException, join, workers)
    assert (error.error_index, error.error_pid, error.signal_name) == (0, killed.pid, "SIGKILL")


def join(workers):
    while not workers.join(timeout=WAIT_S):
        pass


def error_of(kind, call, *args, **named):
    try:
        call(*args, **named)
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} did not come")


def failures(method):
    error = error_of(mp.ProcessRaisedException, mp.start_processes, raise_or_wait, nprocs=3, start_method=method)
    assert error.error_index == 1
    assert "-- Process 1 terminated with the following error:\nTraceback" in str(error)
    assert "ValueError: the second cannot go on" in str(error)
    assert "\x1b" not in str(error)
    for how, expected in (("code", (3, None)), ("signal", (-signal.SIGKILL, "SIGKILL"))):
        error = error_of(mp.ProcessExitedException, mp.start_processes, leave, (how,), start_method=method)
        assert (error.exit_code, error.signal_name) == expected
    assert mp.start_processes(square, nprocs=1, start_method=method) is None


def pools(method):
    with mp.get_context(method).Pool(1) as pool:
        given = torch.arange(3.0)
        assert pool.map(square, [given, given + 1])[1].tolist() == [1.0, 4.0, 9.0]
        result = pool.apply(square, (given,))
        assert result.is_shared()
        assert given.is_shared()


def main():
    method = sys.argv[1]
    hogwild(method)
    if method == "fork":  # the rest is the same for all, and fresh interpreters take their time
        failures(method)
        pools(method)
    gc.collect()  # tracebacks refer to frames, and those to tensors
    left = [fd for fd in os.listdir("/proc/self/fd") if "resilin-shared" in _link(fd)]
    assert left == [], left
    print("done")


def _link(fd):
    path = f"/proc/self/fd/{fd}"
    return os.readlink(path) if os.path.lexists(path) else ""


if __name__ == "__main__":
    main()
