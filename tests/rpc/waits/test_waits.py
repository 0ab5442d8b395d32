"""What workers say that they wait for and run, and what `resilin rpc` makes of it."""

import contextlib
import hashlib
import io
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import other_user
import pytest
from rpc_functions import sleeps
from rpc_workers import Me, on_workers, spawned, until

import resilin.distributed.rpc as rpc
from resilin._base import framing
from resilin._base.clock import Deadline
from resilin.errors import RpcTimeout
from resilin.futures import Future
from resilin.launcher import main
from resilin.launcher.rpc import debug_client
from resilin.rpc.waits import gathered, report

PROMISED: list[Future[int]] = []
HERE = threading.Event()
GO_ON = threading.Event()
LOCK = threading.Lock()


def waits_for_word() -> None:
    HERE.set()
    assert GO_ON.wait(60)
    HERE.clear()
    GO_ON.clear()


def go_on() -> None:
    GO_ON.set()


@rpc.functions.async_execution
def promised() -> Future[int]:
    PROMISED.append(Future())
    return PROMISED[-1]


def keep_promises() -> None:
    while PROMISED:
        PROMISED.pop().set_result(1)


def calls_back(to: str) -> None:
    rpc.rpc_sync(to, waits_for_word)


def calls_back_later(to: str) -> None:
    rpc.rpc_async(to, waits_for_word).wait()


def own_report() -> dict[str, Any]:
    return report.of_worker(rpc._get_current_rpc_agent())


def here(me: Me) -> str:
    """The name of a job that this test alone has."""
    return f"waits-{Path(me.folder).parent.name}-{Path(me.folder).name}"


@contextlib.contextmanager
def in_job(me: Me) -> Iterator[str]:
    os.environ["RESILIN_JOB"] = here(me)
    try:
        me.init()
    finally:
        del os.environ["RESILIN_JOB"]
    yield here(me)
    me.meet("done")
    rpc.shutdown()


def asked(*argv: str) -> tuple[int, str]:
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
        code = main.main(["rpc", *argv])
    return code, said.getvalue()


@on_workers(2)
def test_a_worker_says_what_it_waits_for_and_runs(me: Me) -> None:
    if me.rank == 0:
        future = rpc.rpc_async("worker1", waits_for_word)
        other = rpc.rpc_async("worker1", promised)
        until(lambda: len(rpc.rpc_sync("worker1", own_report)["runs"]) == 3)
        thread = threading.Thread(target=future.wait)
        thread.start()
        until(lambda: own_report()["waits"][0]["blocks"])
        (first, second), runs = own_report()["waits"], rpc.rpc_sync("worker1", own_report)["runs"]
        assert first["function"].endswith(":waits_for_word")
        assert (first["to"], first["to_id"], first["within"]) == ("worker1", 1, None)
        assert second["function"].endswith(":promised")
        assert not second["blocks"]
        assert [run["thread"] for run in runs] == [True, False, True]
        assert runs[0]["from"] == "worker0"
        assert runs[0]["number"] == first["number"]
        assert 0 <= runs[0]["age_s"] <= first["age_s"] < 60
        rpc.rpc_sync("worker1", go_on)
        rpc.rpc_sync("worker1", keep_promises)
        other.wait()
        thread.join()
        assert own_report()["waits"] == []
        assert own_report()["threads"] == 16
    me.meet("done")


@pytest.mark.parametrize("back", ["call", "future"])
def test_nested_waits_are_told_within_what_runs(back: str) -> None:
    {"call": nested_calls, "future": nested_futures}[back]()


@on_workers(2)
def nested_calls(me: Me) -> None:
    check_nested(me, calls_back)


@on_workers(2)
def nested_futures(me: Me) -> None:
    check_nested(me, calls_back_later)


def check_nested(me: Me, function: Any) -> None:
    if me.rank == 0:
        future = rpc.rpc_async("worker1", function, args=("worker0",))
        until(HERE.is_set)
        until(lambda: any(wait["blocks"] for wait in rpc.rpc_sync("worker1", own_report)["waits"]))
        ours = own_report()
        there = rpc.rpc_sync("worker1", own_report)
        (wait,) = there["waits"]
        assert wait["function"].endswith(":waits_for_word")
        assert wait["within"] == [0, ours["waits"][0]["number"]]
        assert ours["runs"][0]["number"] == wait["number"]
        GO_ON.set()
        future.wait()
    me.meet("done")


@on_workers(3, setup=False)
def test_the_command_shows_all_workers_and_returns_0(me: Me) -> None:
    with in_job(me) as job:
        if me.rank == 0:
            future = rpc.rpc_async("worker1", calls_back, args=("worker2",))
            rpc.rpc_sync("worker2", is_there)
            code, text = asked(job)
            assert code == 0, text
            assert "worker0 (127.0.0.1, pid " in text
            assert "  waits for worker1: test_waits:calls_back, " in text
            assert "  waits for worker2: test_waits:waits_for_word, " in text
            assert ", in test_waits:calls_back for worker0" in text
            assert "  runs for worker1: test_waits:waits_for_word, " in text
            code, text = asked(job, "--json")
            (group,) = json.loads(text)["groups"]
            assert [each["worker"] for each in group["workers"]] == ["worker0", "worker1", "worker2"]
            assert group["cycle"] == group["unheard"] == group["comes_back"] == []
            rpc.rpc_sync("worker2", go_on)
            future.wait()


def is_there() -> None:
    until(HERE.is_set)


@on_workers(2, setup=False, num_worker_threads=1)
def test_a_circle_of_workers_without_threads_is_named(me: Me) -> None:
    with in_job(me) as job:
        if me.rank == 0:
            calls = [
                rpc.rpc_async(f"worker{to}", meets_and_calls, args=(f"worker{1 - to}", me.folder)) for to in (0, 1)
            ]
            until(lambda: asked(job)[0] == 1)
            until(lambda: "a cycle" in asked(job)[1])
            code, text = asked(job)
            assert code == 1
            line = next(line for line in text.splitlines() if "a cycle that only timeouts end: " in line)
            assert "worker0 waits for builtins:abs at worker1 (" in line
            assert "worker1 waits for builtins:abs at worker0 (" in line
            assert "not begun: all its threads wait" in line
            assert len(json.loads(asked(job, "--json")[1])["groups"][0]["cycle"]) == 2
            late = 0
            for call in calls:
                try:
                    call.wait()
                except RpcTimeout:
                    late += 1
            assert late, "the other one may end when the first has given up"
            code, text = asked(job)
            assert code == 0, text


def meets_and_calls(to: int, folder: str) -> int:
    """Occupy the only thread of this worker until that of the other one is occupied, too, and call it."""
    (Path(folder) / f"calls {to}").touch()
    until(lambda: len(list(Path(folder).glob("calls *"))) == 2)
    found: int = rpc.rpc_sync(to, abs, args=(-1,), timeout=8)
    return found


@on_workers(2, setup=False)
def test_a_call_that_comes_back_to_who_waits_for_it_is_told(me: Me) -> None:
    with in_job(me) as job:
        if me.rank == 0:
            answers: list[tuple[int, str]] = []

            def look() -> None:
                until(HERE.is_set)
                answers.append(asked(job, "--after", "0"))
                answers.append(asked(job, "--after", "30"))
                GO_ON.set()

            thread = threading.Thread(target=look)
            thread.start()
            rpc.rpc_sync("worker1", calls_back, args=("worker0",))
            thread.join()
            (code, text), (_, later) = answers
            assert code == 0
            assert "a call comes back to who waits for it: worker0 waits for test_waits:calls_back at worker1" in text
            assert "comes back" not in later


@on_workers(3, setup=False)
def test_stopped_workers_are_said_to_be_silent(me: Me) -> None:
    with in_job(me) as job:
        if me.rank == 0:
            pid = rpc.rpc_sync("worker1", os.getpid)
            os.kill(pid, signal.SIGSTOP)
            try:
                code, text = asked(job, "--timeout", "0.3")
            finally:
                os.kill(pid, signal.SIGCONT)
            assert code == 1
            assert text.count("did not answer within") == 1, text
            assert "worker1: did not answer within 0.3" in text
            assert "worker2 (127.0.0.1, pid " in text
            assert asked(job)[0] == 0


def _dies(me: Me) -> None:
    with contextlib.ExitStack() as stack:
        os.environ["RESILIN_JOB"] = f"dies-{Path(me.folder).name}-{os.getppid()}"
        me.init()
        stack.callback(rpc.shutdown, graceful=False)
        if me.rank == 1:
            me.meet("ready")
            os.kill(os.getpid(), signal.SIGKILL)
        rpc.rpc_sync(f"worker{1 if me.rank == 0 else 0}", os.getpid)
        me.meet("ready")
        if me.rank == 0:
            until(lambda: "lost" in asked(os.environ["RESILIN_JOB"])[1])
            code, text = asked(os.environ["RESILIN_JOB"], "--json")
            assert code == 1
            workers = json.loads(text)["groups"][0]["workers"]
            assert "is lost" in workers[1]["error"]
            assert "error" not in workers[2]
            (Path(me.folder) / "asked").touch()
        else:
            until((Path(me.folder) / "asked").exists)


@pytest.mark.multiproc
def test_dead_workers_are_named(tmp_path: Path) -> None:
    with spawned(_dies, 3, tmp_path) as ended:
        assert ended(1) == -signal.SIGKILL
        assert ended(0) == 0
        assert ended(2) == 0


@on_workers(1, setup=False)
def test_nonsense_is_answered_with_an_error(me: Me) -> None:
    with in_job(me) as job:
        (found,) = debug_client.of_job(job)
        assert isinstance(found, debug_client.RpcWorker)
        with pytest.raises(debug_client.Unanswered, match="could not sing: ValueError: unknown op 'sing'"):
            found._ask(5.0, op="sing")
        with pytest.raises(debug_client.Unanswered, match="could not waits: KeyError"):
            found._ask(5.0, op="waits")
        for said in (b"", b"[]", b"{", b"\xff"):
            framing.send_frame(found._socket, said)
            answer = json.loads(framing.recv_frame(found._socket, Deadline(5.0)))
            assert "error" in answer
        assert found.waits(1.0)[0]["worker"] == "worker0"
        found._socket.sendall(b"\xff\xff\xff\xff")
        with pytest.raises((OSError, framing.FrameError)):
            framing.recv_frame(found._socket, Deadline(5.0))
        found.close()


STRANGER = """
import socket
(name,) = sys.argv[1:]
with socket.socket(socket.AF_UNIX) as sock:
    sock.settimeout(30)
    sock.connect(b"\\0" + name.encode())
    with contextlib.suppress(OSError):
        sock.sendall(b'\\0\\0\\0\\x0d{{"op": "who"}}')
        print("heard", sock.recv(1))
print("hung up")
"""


@other_user.needs_root
@on_workers(1, setup=False)
def test_another_user_is_not_answered(me: Me) -> None:
    with in_job(me) as job:
        name = next(
            name for name, of, _ in debug_client._names() if of == hashlib.sha256(job.encode()).hexdigest()[:16]
        )
        said = other_user.OtherUser().run(STRANGER.replace("{{", "{").replace("}}", "}"), name)
        assert said[-1] == "hung up"
        assert said[0] in ("heard b''", "hung up")
        assert asked(job)[0] == 0


@on_workers(1, setup=False)
def test_nobody_is_there_any_more_after_the_end(me: Me) -> None:
    with in_job(me) as job:
        assert asked(job)[0] == 0
    code, text = asked(job)
    assert code == 4
    assert f"no RPC worker of job '{job}' of this user runs on this machine" in text
    assert asked(job, "--timeout", "5")[0] == 4


def test_bad_flags_are_refused() -> None:
    for flags in (["--timeout", "x"], ["--timeout", "-1"], ["--timeout", "1e9"], ["--after", "nan"]):
        with pytest.raises(SystemExit) as ended:
            asked(*flags)
        assert ended.value.code == 2


@on_workers(2)
def test_asking_leaves_nothing_pending(me: Me) -> None:
    if me.rank == 0:
        agent = rpc._get_current_rpc_agent()
        future = rpc.rpc_async("worker1", sleeps, args=(0.2,))
        assert [each["worker"] for each in gathered.of_all(agent, 20.0)] == ["worker0", "worker1"]
        future.wait()
        until(agent.is_idle)
    me.meet("done")


def test_sockets_of_others_are_not_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = tmp_path / "unix"
    names = [f"@resilin-rpc-waits-{user}-{'0' * 16}-77-{'a' * 8}" for user in (os.geteuid(), os.geteuid() + 1)]
    table.write_text(
        "\n".join(["Num", *(f"0: 2 0 10000 1 1 9 {each}" for each in [*names, "@other", "/tmp/x"])]) + "\n"
    )
    monkeypatch.setattr(debug_client, "_SOCKETS", table)
    assert [name for name, _, _ in debug_client._names()] == [names[0][1:]]
    assert debug_client.of_job(None) == [], "nobody listens there"
    monkeypatch.setattr(debug_client, "_SOCKETS", tmp_path / "none")
    assert debug_client.of_job(None) == []
