"""An agent whose store went away: it says so, gives up only for a reason, and still ends its workers gracefully."""

import asyncio
import contextlib
import io
import os
import signal
import sys
from functools import partial

import pytest
from membership_script import Script

from resilin.elastic.agent.agent import Agent
from resilin.elastic.agent.config import AgentConfig
from resilin.elastic.agent.process_supervisor import Supervisor
from resilin.elastic.agent.reports import Reporter
from resilin.elastic.agent.streams import Plan
from resilin.elastic.agent.wait_limits import WaitLimits
from resilin.elastic.membership import decision, queries
from resilin.elastic.membership.view import Config, Situation
from resilin.elastic.rendezvous.retry_queue import Outage
from resilin.elastic.spawn import environment
from resilin.elastic.spawn.program import Program
from resilin.elastic.spawn.spawner_client import SpawnerProcess
from resilin.errors import StoreTimeout
from resilin.store import MemoryStore
from resilin.testing.patience import PATIENCE_S

SAVES_FOR_A_WHILE = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
def stop(number, frame):
    time.sleep(1.0)
    (folder / "saved").touch()
    sys.exit(0)
signal.signal(signal.SIGUSR1, stop)
(folder / "up").touch()
time.sleep(1000)
"""


class Leaky(MemoryStore):
    """A store that stops answering when `away` is set."""

    away = False

    def _check(self):
        if self.away:
            raise StoreTimeout("the store did not answer (planned)")

    def txn(self, *args):
        self._check()
        return super().txn(*args)

    def lease(self, *args):
        self._check()
        return super().lease(*args)


def agent(folder, program, store, process, stream, **changes):
    command = (sys.executable, str(program), str(folder))
    known = {
        "job": environment.JobEnvironment(name="job"),
        "membership": Config(min_nodes=1, max_nodes=1, max_restarts=0),
        "program": Program(command=command, argv=command[1:]),
        "plan": Plan(base=folder, keep=False),
        "node_id": "n",
        "host": "h",
        "address": "127.0.0.1",
        "master_port": 1,
        "workers": 1,
        "inherited": dict(os.environ),
        "lease_ttl_s": 0.2,  # how often an idle agent asks whether the store is there
        "signals": (signal.SIGUSR1,),  # not one that pytest minds
        "meeting": "here:1",
    }
    return Agent(AgentConfig(**{**known, **changes}), store, partial(Supervisor, process), Reporter(stream))


async def heeding_signals(one):
    with one.heeding_signals():
        return await one.run()


async def until(condition, timeout_s=PATIENCE_S):
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)  # polls another process, which cannot tell us


def play(scenario):
    """Run `scenario(store, process)` in a loop; `process` is a spawner of its own."""
    with Leaky() as store, contextlib.closing(SpawnerProcess()) as process:
        return asyncio.run(scenario(store, process))


@pytest.mark.multiproc
def test_a_node_asked_to_leave_keeps_its_grace_when_the_store_has_been_away_for_long(tmp_path, script):
    stream = io.StringIO()

    async def scenario(store, process):
        one = agent(tmp_path, script(SAVES_FOR_A_WHILE), store, process, stream, outage_timeout_s=0.1)
        running = asyncio.create_task(heeding_signals(one))
        await until((tmp_path / "up").exists)
        store.away = True
        await until(lambda: "does not answer" in stream.getvalue())
        await asyncio.sleep(0.2)  # longer than outage_timeout_s
        os.kill(os.getpid(), signal.SIGUSR1)
        outcome = await running
        store.away = False
        return outcome

    outcome = play(scenario)
    assert (outcome.code, outcome.reason) == (128 + signal.SIGUSR1, "ended by SIGUSR1")
    assert (tmp_path / "saved").exists(), "the worker was killed before it had saved"


@pytest.mark.multiproc
@pytest.mark.parametrize("asked_to_leave", [False, True], ids=["it is back", "asked to leave"])
def test_a_node_that_loses_the_store_while_it_joins_joins_when_it_is_back(tmp_path, script, asked_to_leave):
    stream = io.StringIO()

    async def scenario(store, process):
        store.away = True
        one = agent(tmp_path, script(SAVES_FOR_A_WHILE), store, process, stream)
        running = asyncio.create_task(heeding_signals(one))
        await until(lambda: "here:1 does not answer: this node joins when it does" in stream.getvalue())
        if not asked_to_leave:
            store.away = False
            await until((tmp_path / "up").exists)
        os.kill(os.getpid(), signal.SIGUSR1)
        return await running

    outcome = play(scenario)
    assert (outcome.code, outcome.reason) == (128 + signal.SIGUSR1, "ended by SIGUSR1")
    assert stream.getvalue().count("does not answer") == 1


@pytest.mark.multiproc
def test_a_node_gives_up_to_join_a_store_that_stays_away(tmp_path, script):
    async def scenario(store, process):
        store.away = True
        await agent(tmp_path, script("pass"), store, process, io.StringIO(), outage_timeout_s=0.1).run()

    with pytest.raises(StoreTimeout, match="planned"):
        play(scenario)


@pytest.mark.multiproc
def test_an_outage_is_two_lines_of_the_launchers_own(tmp_path, script, caplog):
    stream = io.StringIO()

    async def scenario(store, process):
        one = agent(tmp_path, script(SAVES_FOR_A_WHILE), store, process, stream)
        running = asyncio.create_task(heeding_signals(one))
        await until((tmp_path / "up").exists)
        store.away = True
        await until(lambda: "does not answer" in stream.getvalue())
        store.away = False
        await until(lambda: "answers again" in stream.getvalue())
        os.kill(os.getpid(), signal.SIGUSR1)
        return await running

    with caplog.at_level("WARNING", logger="resilin"):
        assert play(scenario).code == 128 + signal.SIGUSR1
    away, back, _ = stream.getvalue().splitlines()
    assert away.startswith("elastic-run: the store at here:1 does not answer: training goes on without it; ")
    assert back.startswith("elastic-run: the store answers again, after ")
    assert not caplog.records, "nothing is said twice"


def waiting(told, **changes):
    known = {"join_timeout_s": 7.0, "outage_timeout_s": 60.0, "min_nodes": 2, "meeting": "here:1"}
    return WaitLimits(told.append, **known | changes)


def test_who_gives_up_a_store_that_one_node_served_says_why_and_what_to_do():
    broken, away = Situation(action="reshape", reason="rank 1 lost with a node"), Outage(since=10.0, error="planned")
    _, outcome = waiting([], hosted=True).patience(broken, away, 12.0, 15.0)
    assert outcome.reason.startswith(
        "gave up after 60 s: the store does not answer, and rank 1 lost with a node (planned); "
        "the store at here:1 is in the memory of the node that serves it"
    )
    assert "--rdzv-backend etcd" in outcome.reason
    assert "`resilin store serve`" in outcome.reason


def test_an_outage_is_told_once_when_it_begins_and_once_when_it_ends():
    told: list[str] = []
    one = waiting(told)
    steady, away = Situation(action="steady", reason="all members are well"), Outage(since=10.0, error="x" * 300)
    assert one.patience(steady, None, 0.0, 9.0) is None
    assert one.patience(steady, away, 0.0, 15.0) is None
    assert one.patience(steady, away, 0.0, 16.0) is None
    assert one.patience(steady, None, 0.0, 22.4) is None
    assert told == [
        "the store at here:1 does not answer: training goes on without it; this node gives up after 60 s in which the "
        "world has to change",
        "the store answers again, after 12 s",
    ]
    one.patience(steady, away, 9.5, 30.0)
    assert told[2].endswith("has to change, or after 300 s without a commit")


def test_an_outage_is_borne_for_ever_by_a_plain_program_and_for_a_while_where_a_change_or_a_commit_is_due():
    one, away = waiting([]), Outage(since=10.0, error="planned")
    steady = Situation(action="steady", reason="all members are well")
    broken = Situation(action="reshape", reason="rank 1 failed")
    assert one.patience(steady, away, 0.0, 1e6) is None
    end, outcome = one.patience(broken, away, 12.0, 15.0)
    assert (end, outcome.code) == (75.0, 3), "a minute from when the change was needed"
    assert one.patience(broken, away, 12.0, 20.0)[0] == 75.0
    assert outcome.reason == "gave up after 60 s: the store does not answer, and rank 1 failed (planned)"
    end, outcome = one.patience(steady, away, 12.0, 15.0)
    assert (end, outcome.code) == (312.0, 3)


def test_a_world_that_workers_have_lost_is_a_change_that_is_needed_though_no_record_says_so():
    one, away = waiting([]), Outage(since=10.0, error="planned")
    steady = Situation(action="steady", reason="all members are well")
    lost = "rank 1 lost its world (rank 0 died)"
    assert one.patience(steady, None, 9.5, 10.1, lost) is None
    end, outcome = one.patience(steady, away, 9.5, 15.0, lost)
    assert (end, outcome.code) == (70.1, 3), "from when it was lost, not from when the store was found to be away"
    assert outcome.reason.startswith(f"gave up after 60 s: the store does not answer, and {lost}")
    assert one.patience(steady, away, 9.5, 20.0)[0] == 310.0, "a later world is well"


def test_too_few_nodes_are_waited_for_from_when_they_were_missed_first():
    one = waiting([])
    wait = Situation(action="wait", reason="1 of at least 2 nodes are there")
    assert one.patience(wait, None, 0.0, 3.0)[0] == 10.0
    assert one.patience(wait, None, 0.0, 5.0)[0] == 10.0
    assert one.patience(Situation(action="steady", reason=""), None, 0.0, 6.0) is None
    end, outcome = one.patience(wait, None, 0.0, 8.0)
    assert (end, outcome.code, outcome.reason) == (15.0, 4, "gave up after 7 s: 1 of at least 2 nodes are there")


def test_a_replacement_that_a_silent_store_keeps_out_does_not_stand_by():
    script = Script()
    for line in ("job 1:1 restarts 3 shards 2", "join a slots 3", "hello all"):
        script.do(line)
    (spare,) = queries.standing_by(script.view)
    assert spare.slot == 2
    script._die("a/1", "external")  # nobody decides anything
    script._replace("a/1")
    script._hello("a/1")
    assert queries.standing_by(script.view) == (), "there is a place for both, which only the store could say"


@pytest.mark.parametrize(
    ("story", "who", "alone"),
    [
        (["join a slots 2", "wait 1", "hello all", "done all"], "a", True),
        (["join a", "join b", "hello all", "done all"], "a", False),
        (["join a", "join b", "hello all", "leave b", "done all"], "a", True),
        (["join a", "join b", "hello all", "lost b", "done all"], "a", True),
        (["join a", "join b", "join spare", "hello all", "lost b", "done a/0"], "a", False),
        (["join a", "join b", "hello all", "leave b", "done all"], "b", False),
        ([], "a", False),
    ],
    ids=["only node", "members elsewhere", "the other leaves", "the other is gone", "a spare", "asked of it", "no job"],
)
def test_a_job_ends_without_the_store_only_where_nobody_else_has_a_part_in_it(story, who, alone):
    script = Script()
    for line in ("job 1:2", *story):
        script.do(line)
    view, config = script.seen()
    assert queries.ends_alone(view, who) is alone
    told: list[str] = []
    one, away = waiting(told), Outage(since=10.0, error="planned")
    situation = decision.assess(view, config, script.now)
    assert one.alone(view, situation, None, who, 100.0) == (None, None), "the store is there: it says when"
    if not alone:
        assert one.alone(view, situation, away, who, 100.0) == (None, None)
        return
    assert one.alone(view, situation, away, who, 12.0) == (15.0, None)
    assert not told
    again, closed = one.alone(view, situation, away, who, 15.0)
    assert (again, closed.outcome, closed.reason) == (None, "succeeded", "all workers are done")
    assert told[0].endswith("it ends here, though the store could not be told (planned)")


def test_nobody_ends_alone_while_a_worker_is_not_done():
    script = Script()
    for line in ("job 1:1", "join a slots 2", "hello all", "done a/0"):
        script.do(line)
    view, config = script.seen()
    situation = decision.assess(view, config, script.now)
    assert waiting([]).alone(view, situation, Outage(since=0.0, error="x"), "a", 99.0) == (None, None)
