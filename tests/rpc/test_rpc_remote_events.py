"""What a call did at its callee, in the profile of its caller, by PyTorch's keys."""

from __future__ import annotations

import contextlib
import json
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rpc_workers import Me, on_workers, until

import resilin as torch
import resilin.distributed.rpc as rpc
from resilin._base import trace, trace_ring
from resilin._base.trace import Layer, SpanKind
from resilin.core.kernels.loader import native
from resilin.profiler import ProfilerActivity, profile, record_function
from resilin.rpc.tracing import remote_events
from resilin.rpc.tracing.remote_events import Asked
from resilin.testing.patience import PATIENCE_S

MODES = ("rpc_sync", "rpc_async", "rpc_remote")


def work(x: Any) -> Any:
    with record_function("##forward##"):
        y = torch.relu(x + torch.ones(2))
    return torch.sigmoid(y * 2)


def fails_late(x: Any) -> Any:
    torch.exp(x)
    raise ValueError("as it should")


def ask_the_next(to: str, x: Any) -> Any:
    return torch.neg(rpc.rpc_sync(to, work, args=(x,)))


@rpc.functions.async_execution
def ask_the_next_later(to: str, x: Any) -> Any:
    return rpc.rpc_async(to, work, args=(x,)).then(lambda done: torch.neg(done.wait()))


def many(count: int) -> None:
    x = torch.ones(1)
    for _ in range(count):
        x = x + 1


def is_recorded() -> bool:
    return trace.recorder is not None


def profiled_there(x: Any) -> list[str]:
    with profile() as prof:
        work(x)
    return [event.name for event in prof.events()]


def until_told(folder: str) -> Any:
    """Does something, waits for a profile to begin or end at its own worker, and does something else."""
    torch.sin(torch.ones(1))
    Path(folder, "begun").touch()
    until(Path(folder, "go on").exists)
    return torch.cos(torch.ones(1))


def _call(mode: str, to: str, function: Any, *args: Any) -> Any:
    if mode == "rpc_sync":
        return rpc.rpc_sync(to, function, args=args)
    if mode == "rpc_async":
        return rpc.rpc_async(to, function, args=args).wait()
    return rpc.remote(to, function, args=args).to_here()


def _remote(prof: profile, key: str) -> dict[str, Any]:
    """The remote events of a call, by what they are called at the callee."""
    begin = key + "#remote_op: "
    return {event.name.removeprefix(begin): event for event in prof.events() if event.name.startswith(begin)}


def _key(mode: str, function: Any, caller: str, callee: str) -> str:
    return f"{mode}#{function.__qualname__}({caller} -> {callee})"


@on_workers(2)
def test_ops_of_the_callee_are_events_of_the_caller(me: Me) -> None:
    if me.rank != 1:
        return
    for mode in MODES:
        with profile() as prof, record_function("around"):
            assert _call(mode, "worker0", work, torch.ones(2)).tolist() == pytest.approx([0.98201] * 2, abs=1e-4)
        key = _key(mode, work, "worker1", "worker0")
        found = _remote(prof, key)
        assert {"##forward##", "aten::ones", "aten::add", "aten::relu", "aten::mul", "aten::sigmoid"} <= found.keys()
        assert all(event.is_remote and event.node_id == 0 for event in found.values())
        assert not any(name.startswith("rpc_call#") for name in found)
        inside = [found[name] for name in ("aten::ones", "aten::add", "aten::relu")]
        assert [each.cpu_parent.name for each in inside] == [found["##forward##"].name] * 3
        (call,) = [event for event in prof.events() if event.name == key]
        assert (call.node_id, call.is_remote) == (1, False)
        assert {event.node_id for event in prof.events() if not event.is_remote} == {1}
        if mode != "rpc_remote":  # which returns before it is done
            times = [event.time_range for event in found.values()]
            assert call.time_range.start <= min(each.start for each in times)
            assert max(each.end for each in times) <= call.time_range.end
        assert prof.key_averages().table()


class Held:
    """A value at its owner, whose methods others call."""

    def work(self, x: Any) -> Any:
        return work(x)

    @staticmethod
    @rpc.functions.async_execution
    def ask(to: str, x: Any) -> Any:
        return rpc.rpc_async(to, work, args=(x,))

    def through(self, to: Any, x: Any) -> Any:
        """Calls a method of another value, whose type is not known here yet."""
        return to.rpc_async().work(x).wait()


def held() -> Any:
    return rpc.RRef(Held())


@on_workers(2)
def test_calls_through_references_are_spans_by_pytorchs_names(me: Me) -> None:
    if me.rank != 0:
        return
    x = torch.ones(2)
    for mode in MODES:
        value = rpc.remote("worker1", Held)
        with profile() as prof:
            proxy = getattr(value, mode.removeprefix("rpc_") if mode == "rpc_remote" else mode)()
            made = proxy.work(x)
            made = made if mode == "rpc_sync" else made.wait() if mode == "rpc_async" else made.to_here()
        assert made.tolist() == pytest.approx([0.98201] * 2, abs=1e-4)
        key = f"{mode}#_local_invoke(worker0 -> worker1)"
        found = _remote(prof, key)
        assert {"aten::add", "aten::relu", "aten::sigmoid"} <= found.keys()
        assert {event.node_id for event in found.values()} == {1}
        names = [event.name for event in prof.events()]
        assert names.count(key) == 1
        assert names.count("rpc_async#_rref_typeof_on_owner(worker0 -> worker1)") == 1
        assert names.count("to_here#(worker0)->(worker1)") == (mode == "rpc_remote")
    with profile() as prof:
        value.rpc_sync().work(x)  # whose type is known by now
    assert not any("_rref_typeof_on_owner" in event.name for event in prof.events())


@on_workers(3)
def test_calls_through_references_within_calls_are_named_by_the_whole_way(me: Me) -> None:
    if me.rank != 0:
        return
    first, other, x = rpc.remote("worker1", Held), rpc.rpc_sync("worker2", held), torch.ones(2)
    second = "rpc_async#work(worker1 -> worker2)"
    with profile() as prof:
        first.rpc_sync().ask("worker2", x)
        first.rpc_sync().through(other, x)
    found = _remote(prof, "rpc_sync#_local_invoke_async_execution(worker0 -> worker1)")
    assert found[f"{second}#remote_op: aten::relu"].node_id == 2
    found = _remote(prof, "rpc_sync#_local_invoke(worker0 -> worker1)")
    assert found["rpc_async#_local_invoke(worker1 -> worker2)#remote_op: aten::relu"].node_id == 2


@on_workers(2)
def test_nothing_is_asked_for_unless_a_profile_records(me: Me) -> None:
    if me.rank != 0:
        return
    assert not rpc.rpc_sync("worker1", is_recorded)
    buffer = bytearray(1 << 20)
    trace.record_with(trace_ring.Ring(buffer), Layer.STANDING)  # as `resilin trace record` does, at both ends
    try:
        assert not rpc.rpc_sync("worker1", is_recorded)
    finally:
        trace.record_with(None, Layer.STANDING)
    assert not any("remote_op" in span.name for span in trace_ring.read(buffer).spans)
    with profile(), contextlib.suppress(ValueError):
        assert rpc.rpc_sync("worker1", is_recorded)
        rpc.rpc_sync("worker1", fails_late, args=(torch.ones(1),))
    until(lambda: not rpc.rpc_sync("worker1", is_recorded))  # it stops when the last call of a profile is answered


@on_workers(3)
def test_calls_within_calls_are_named_by_the_whole_way(me: Me) -> None:
    if me.rank != 0:
        return
    for function, inner in ((ask_the_next, "rpc_sync"), (ask_the_next_later, "rpc_async")):
        for mode in MODES:
            with profile() as prof:
                _call(mode, "worker1", function, "worker2", torch.ones(2))
            first = _remote(prof, _key(mode, function, "worker0", "worker1"))
            second = _key(inner, work, "worker1", "worker2")
            assert first[second].node_id == 1
            assert first["aten::neg"].node_id == 1
            inside = {name.partition("#remote_op: ")[2]: event for name, event in first.items() if second in name}
            assert {inside[name].node_id for name in ("aten::relu", "##forward##", "aten::sigmoid")} == {2}


@on_workers(2)
def test_what_the_callee_did_before_it_raised_is_there(me: Me) -> None:
    if me.rank != 0:
        return
    for mode in MODES:
        with profile() as prof, pytest.raises(ValueError, match="as it should"):
            _call(mode, "worker1", fails_late, torch.ones(1))
        if mode != "rpc_remote":  # which tells with its creation, that nothing waits for when the value has failed
            assert "aten::exp" in _remote(prof, _key(mode, fails_late, "worker0", "worker1"))


@on_workers(2)
def test_few_events_come_back_and_those_left_out_are_counted(me: Me) -> None:
    if me.rank != 0:
        return
    count = remote_events.MOST_EVENTS + 500
    with profile() as prof:
        rpc.rpc_sync("worker1", many, args=(count,))
    remote = [event for event in prof.events() if event.is_remote]
    assert remote_events.MOST_EVENTS // 8 <= len(remote) <= remote_events.MOST_EVENTS
    prof.export_chrome_trace(f"{me.folder}/trace.json")
    events = json.loads(Path(f"{me.folder}/trace.json").read_text())["traceEvents"]
    (call,) = [event for event in events if event["name"] == _key("rpc_sync", many, "worker0", "worker1")]
    assert call["args"]["Remote events left out"] == count + 1 - len(remote)  # and `ones`


@on_workers(3)
def test_two_profile_calls_of_one_callee_at_once(me: Me) -> None:
    if me.rank != 2:
        with profile() as prof:
            me.meet("both record")
            for _ in range(20):
                rpc.rpc_sync("worker2", work, args=(torch.ones(2),))
            me.meet("both have called")
        key = _key("rpc_sync", work, f"worker{me.rank}", "worker2") + "#remote_op: aten::sigmoid"
        assert sum(event.name == key for event in prof.events()) == 20
        assert sum("#remote_op: aten::sigmoid" in event.name for event in prof.events()) == 20
    else:
        me.meet("both record")
        me.meet("both have called")


@on_workers(2)
def test_the_callee_may_profile_as_well(me: Me) -> None:
    if me.rank == 1:
        with profile() as prof:
            me.meet("the callee records")
            me.meet("the caller has called")
        names = [event.name for event in prof.events()]
        assert "aten::sigmoid" in names
        assert not any("remote_op" in name for name in names)
    else:
        me.meet("the callee records")
        with profile() as prof:
            rpc.rpc_sync("worker1", work, args=(torch.ones(2),))
        me.meet("the caller has called")
        assert "aten::sigmoid" in _remote(prof, _key("rpc_sync", work, "worker0", "worker1"))


@on_workers(2)
def test_a_profile_of_the_callee_that_begins_amid_a_call_loses_nothing_of_it(me: Me) -> None:
    if me.rank == 1:
        until((Path(me.folder) / "begun").exists)
        with profile() as prof:
            (Path(me.folder) / "go on").touch()
            me.meet("the call is over")
        assert "aten::cos" in [event.name for event in prof.events()]
    else:
        with profile() as prof:
            rpc.rpc_sync("worker1", until_told, args=(me.folder,))
        me.meet("the call is over")
        assert {"aten::sin", "aten::cos"} <= _remote(prof, _key("rpc_sync", until_told, "worker0", "worker1")).keys()


@on_workers(2)
def test_a_function_that_profiles_itself_is_told_of(me: Me) -> None:
    if me.rank != 0:
        return
    with profile() as prof:
        there = rpc.rpc_sync("worker1", profiled_there, args=(torch.ones(2),))
    assert "aten::relu" in there
    assert "aten::relu" in _remote(prof, _key("rpc_sync", profiled_there, "worker0", "worker1"))


@pytest.mark.skipif(native is None, reason="shapes are recorded by native code")
@on_workers(2)
def test_inputs_come_with_the_events_when_the_profile_wants_them(me: Me) -> None:
    if me.rank != 0:
        return
    for wanted, shapes in ((True, [[2], [2]]), (False, [])):
        with profile(record_shapes=wanted) as prof:
            rpc.rpc_sync("worker1", torch.add, args=(torch.ones(2), torch.ones(2)))
        add = _remote(prof, "rpc_sync#add(worker0 -> worker1)")["aten::add"]
        assert add.input_shapes == shapes


@pytest.mark.parametrize("transport", ["host", "zeromq", "grpc"])
def test_every_transport_brings_them(transport: str) -> None:
    {"host": over_host, "zeromq": over_zeromq, "grpc": over_grpc}[transport]()


def _over(me: Me, transport: str) -> None:
    channels = {} if transport == "host" else {"channels": ["inline"]}
    me.init(transports=[transport], **channels)
    if me.rank == 0:
        x = torch.ones(100_000)  # in a block of its own, beside which the last part stands
        for mode in MODES:
            with profile() as prof:
                assert _call(mode, "worker1", torch.add, x, 1).sum() == 200_000
            key = f"{mode}#add(worker0 -> worker1)"
            assert _remote(prof, key)["aten::add"].node_id == 1
    rpc.shutdown()


@on_workers(2, setup=False)
def over_host(me: Me) -> None:
    _over(me, "host")


@on_workers(2, setup=False)
def over_zeromq(me: Me) -> None:
    _over(me, "zeromq")


@on_workers(2, setup=False)
def over_grpc(me: Me) -> None:
    _over(me, "grpc")


class _Kept:
    """A profile's recorder that keeps what it is told."""

    buffer = None

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def complete(self, name: str, kind: int, start_ns: int, end_ns: int, link: int = -1, args: Any = None) -> None:
        self.told.append((name, kind, start_ns, end_ns, args))


def test_times_of_another_clock_are_set_amid_the_call() -> None:
    kept: Any = _Kept()
    trace.record_with(kept)
    try:
        for ahead_ns in (0, 10**15, -(10**15)):
            asked = Asked("call", kept, None)
            begun = time.monotonic_ns()
            came, left = begun + ahead_ns + 3000, begun + ahead_ns + 8000
            event = ("op", int(SpanKind.OP), came, left, 77, 4, None)
            asked.take(pickle.dumps((came, left, 0, [event])), same_clock=False)
            over = time.monotonic_ns()
            name, _, start, end, args = kept.told[-1]
            assert (name, end - start) == ("call#remote_op: op", 5000)
            assert args == {"is_remote": True, "node_id": 4, "thread": 77}
            assert abs((start - begun) - (over - end)) < 2_000_000 + (over - begun) // 2
        asked.take(b"no pickle", same_clock=True)  # it is logged, and the call goes on
    finally:
        trace.record_with(None)


KILLED = """
import os, signal, sys
import resilin as torch
import resilin.distributed.rpc as rpc
from resilin.errors import PeerLost
from resilin.profiler import profile

def dies():
    torch.ones(1) + 1
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    sys.modules["killed"] = sys.modules["__main__"]
    dies.__module__ = "killed"
    rank = int(sys.argv[1])
    options = rpc.TensorPipeRpcBackendOptions(init_method="file://" + sys.argv[2])
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 1:
        import threading
        threading.Event().wait(60)
    with profile() as prof:
        try:
            rpc.rpc_sync("worker1", dies)
        except PeerLost:
            pass
        try:
            rpc.rpc_async("worker1", dies).wait()
        except PeerLost:
            pass
    print([event.name for event in prof.events()])
    rpc.shutdown(graceful=False)
"""


@pytest.mark.multiproc
def test_a_callee_that_dies_leaves_the_spans_of_the_calls(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    command = [sys.executable, str(tmp_path / "killed.py")]
    callee = subprocess.Popen([*command, "1", str(tmp_path / "store")], stderr=subprocess.DEVNULL)
    try:
        done = subprocess.run(
            [*command, "0", str(tmp_path / "store")],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        told = done.stdout
        assert "rpc_sync#dies(worker0 -> worker1)'" in told
        assert "remote_op" not in told
    finally:
        callee.kill()
        callee.wait()


def test_asking_is_for_this_thread_and_this_call_alone() -> None:
    assert remote_events.ask("call", trace_ring.Ring(bytearray(1 << 16)), 0, 1) is None  # nobody profiles
    with profile(activities=[ProfilerActivity.CPU]):
        recorder = trace.recorder
        assert recorder is not None
        assert remote_events.ask("call", recorder, 3, 3) is None  # to itself: its profile has it
        asked = remote_events.ask("call", recorder, 0, 1)
        assert asked is not None
        with remote_events.asking(asked), remote_events.asking(None):
            assert remote_events.here.asked is None
        assert remote_events.here.asked is None
