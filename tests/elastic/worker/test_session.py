"""A session hears its agent and says so at once to whoever waits."""

import os
import threading
from collections.abc import Callable, Iterator

import pytest
from fake_agent import FakeAgent, world

from resilin.distributed.connections.listener import Listener
from resilin.distributed.group.process_group import connect
from resilin.elastic import control
from resilin.elastic.worker import session as sessions
from resilin.elastic.worker.session import Leaving, Session, is_elastic
from resilin.elastic.worker.session import world as current_world
from resilin.errors import ElasticError, RendezvousTimeout, WorldChanged
from resilin.testing.patience import PATIENCE_S

WAIT_S = PATIENCE_S


class Group:
    """Remembers what it was aborted with."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.aborted = threading.Event()

    def abort(self, error: BaseException) -> None:
        self.error = error
        self.aborted.set()


@pytest.fixture
def agent() -> Iterator[FakeAgent]:
    made = FakeAgent()
    yield made
    made.close()


@pytest.fixture
def session(agent: FakeAgent) -> Iterator[Session]:
    with Listener() as listener:
        made = Session(agent.worker_end, listener)
        yield made
        made.close()


def heard(session: Session, agent: FakeAgent, *messages: control.Message) -> None:
    """Send `messages` and wait until the session's thread has heeded all of them."""
    number = (session._messages.world.number if session._messages.world else 0) + 100
    for message in (*messages, world(number, ["x"])):
        agent.send(message)
    with session._changed:
        assert session._changed.wait_for(
            lambda: session._messages.world and session._messages.world.number == number, WAIT_S
        )
        session._messages.world = None


def in_generation(session: Session, agent: FakeAgent, number: int = 1) -> Group:
    agent.expect(control.Hello)
    agent.send(world(number, ["a"]))
    assert session.next_world(after=0).number == number
    assert agent.expect(control.Entering) == control.Entering(generation=number)
    group = Group()
    session.joined(number, group)
    return group


def test_hello_carries_the_pid_and_where_peers_find_this_worker(agent: FakeAgent, session: Session) -> None:
    hello = agent.expect(control.Hello)
    assert hello == control.Hello(pid=os.getpid(), endpoint=session.listener.describe())


def test_an_abort_reaches_the_running_group_with_its_reason(agent: FakeAgent, session: Session) -> None:
    group = in_generation(session, agent)
    agent.send(control.Abort(generation=1, reason="killed by SIGKILL", ranks=(2,)))
    assert group.aborted.wait(WAIT_S)
    assert isinstance(group.error, WorldChanged)
    assert str(group.error) == "generation 1 ended: ranks [2]: killed by SIGKILL"
    assert group.error.generation == 1


def test_an_abort_of_an_older_generation_does_not_touch_a_newer_one(agent: FakeAgent, session: Session) -> None:
    group = in_generation(session, agent, number=5)
    heard(session, agent, control.Abort(generation=4, reason="old"))
    assert not group.aborted.is_set()


def test_an_abort_before_the_group_was_formed_is_raised_when_it_joins(agent: FakeAgent, session: Session) -> None:
    agent.expect(control.Hello)
    agent.send(world(1, ["a"]))
    session.next_world(after=0)
    heard(session, agent, control.Abort(generation=1, reason="gone"))
    with pytest.raises(WorldChanged, match="generation 1 ended: gone"):
        session.joined(1, Group())


def test_a_world_that_is_already_over_is_never_entered(agent: FakeAgent, session: Session) -> None:
    agent.expect(control.Hello)
    agent.send(world(1, ["a"]))
    agent.send(control.Abort(generation=1, reason="gone"))
    agent.send(world(2, ["a"]))
    heard_two = session.next_world(after=0)
    assert heard_two.number in (1, 2)
    assert session.next_world(after=1).number == 2


def test_a_worker_that_stands_by_waits_for_a_world_as_long_as_it_takes(
    agent: FakeAgent, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "WORLD_TIMEOUT_S", 0.0)
    with pytest.raises(RendezvousTimeout, match="no world after generation 0"):
        session.next_world(after=0)
    heard(session, agent, control.Standby(reason="the batch has 1 shard"))
    later = threading.Timer(0.05, agent.send, [world(1, ["a"])])
    later.start()
    assert session.next_world(after=0).number == 1
    later.join()


@pytest.mark.parametrize(
    "asked", [(), (control.Leave(reason="the job has succeeded"),)], ids=["told", "asked to leave"]
)
def test_who_has_returned_in_a_world_that_ended_waits_for_no_other_when_all_are_done(
    agent: FakeAgent, session: Session, asked: tuple[control.Message, ...]
) -> None:
    in_generation(session, agent)
    heard(session, agent, control.Abort(generation=1, reason="taken for lost"), control.Finish(), *asked)
    assert session.next_world(after=1, returned=True) is None


def test_who_has_not_returned_is_not_done_when_all_others_are(agent: FakeAgent, session: Session) -> None:
    in_generation(session, agent)
    heard(session, agent, control.Abort(generation=1, reason="gone"), control.Finish(), control.Leave(reason="late"))
    with pytest.raises(Leaving):
        session.next_world(after=1)


def test_a_worker_that_leaves_says_so(agent: FakeAgent, session: Session) -> None:
    agent.expect(control.Hello)
    session.leaves("SIGTERM")
    assert agent.expect(control.Left) == control.Left(reason="SIGTERM")


def connecting(session: Session, number: int) -> Callable[[], BaseException | None]:
    """Form world `number` with a peer that never comes; the result waits for what `connect` raised."""
    errors: list[BaseException] = []
    endpoints = [session.listener.describe(), session.listener.describe()]

    def form() -> None:
        try:
            connect(session.listener, endpoints, 0, group_name="world", generation=number, timeout_s=WAIT_S)
        except WorldChanged as error:
            errors.append(error)

    thread = threading.Thread(target=form)
    thread.start()

    def result() -> BaseException | None:
        thread.join(WAIT_S / 2)
        return errors[0] if errors else None

    return result


@pytest.mark.parametrize("early", [False, True], ids=["while it forms", "before it forms"])
@pytest.mark.parametrize(
    "news", [control.Abort(generation=1, reason="lost"), world(2, ["a", "b"]), control.Pending(number=2)]
)
def test_a_world_that_cannot_form_any_more_is_left_at_once(
    agent: FakeAgent, session: Session, news: control.Message, early: bool
) -> None:
    agent.expect(control.Hello)
    agent.send(world(1, ["a", "b"]))
    session.next_world(after=0)
    if early:
        heard(session, agent, news)
    result = connecting(session, 1)
    if not early:
        with session.listener._news:
            assert session.listener._news.wait_for(lambda: session.listener._expected, WAIT_S)
        agent.send(news)
    error = result()
    assert isinstance(error, WorldChanged)
    assert "generation 1 ended" in str(error)


def test_a_group_that_formed_while_a_newer_world_came_is_given_up(agent: FakeAgent, session: Session) -> None:
    agent.expect(control.Hello)
    agent.send(world(1, ["a"]))
    session.next_world(after=0)
    agent.send(world(2, ["a"]))
    with session._changed:
        assert session._changed.wait_for(
            lambda: session._messages.world and session._messages.world.number == 2, WAIT_S
        )
    with pytest.raises(WorldChanged, match="generation 1 ended"):
        session.joined(1, Group())
    assert session.next_world(after=1).number == 2


def test_commit_reports_the_step_and_gives_way_to_a_pending_generation(agent: FakeAgent, session: Session) -> None:
    in_generation(session, agent)
    session.committed(7)
    told = agent.expect(control.Committed)
    assert isinstance(told, control.Committed)
    assert (told.generation, told.step) == (1, 7)
    heard(session, agent, control.Pending(number=2))
    with pytest.raises(WorldChanged, match="generation 2 waits at step 8; nothing is rolled back"):
        session.committed(8)


def test_a_worker_asked_to_leave_ends_at_its_next_commit_with_code_0(agent: FakeAgent, session: Session) -> None:
    in_generation(session, agent)
    heard(session, agent, control.Leave(reason="node is drained"))
    with pytest.raises(Leaving) as leaving:
        session.committed(3)
    assert (leaving.value.code, leaving.value.reason) == (0, "node is drained")
    assert agent.expect(control.Committed)


def test_a_worker_that_others_count_on_leaves_a_commit_later_and_gives_way_to_a_new_world_before(
    agent: FakeAgent, session: Session
) -> None:
    in_generation(session, agent)
    heard(session, agent, control.Leave(reason="node is drained"))
    assert session.asked_to_leave()
    session.committed(3, lambda: False)
    heard(session, agent, control.Pending(number=session._messages.generation + 1))
    with pytest.raises(WorldChanged, match="waits at step 4"):
        session.committed(4, lambda: False)
    with pytest.raises(Leaving):
        session.committed(5)


def test_done_waits_until_the_agent_says_that_all_are(agent: FakeAgent, session: Session) -> None:
    in_generation(session, agent)
    ended = threading.Event()
    thread = threading.Thread(target=lambda: (session.finished(9), ended.set()))
    thread.start()
    assert agent.expect(control.Done) == control.Done(generation=1)
    assert not ended.is_set()
    agent.send(control.Finish())
    thread.join(WAIT_S)
    assert ended.is_set()


@pytest.mark.parametrize(
    "news", [control.Abort(generation=1, reason="lost"), control.Pending(number=2), world(2, ["a"])]
)
def test_done_is_taken_back_when_the_world_changes_first(
    agent: FakeAgent, session: Session, news: control.Message
) -> None:
    in_generation(session, agent)
    agent.send(news)
    with pytest.raises(WorldChanged, match="generation 1 ended"):
        session.finished(9)


def test_the_agents_death_aborts_the_group_and_ends_every_wait(agent: FakeAgent, session: Session) -> None:
    group = in_generation(session, agent)
    agent.close()
    assert group.aborted.wait(WAIT_S)
    assert isinstance(group.error, ElasticError)
    with pytest.raises(ElasticError, match="the agent closed the control descriptor"):
        session.next_world(after=1)


def test_nonsense_from_the_agent_is_an_error_that_shows_it(agent: FakeAgent, session: Session) -> None:
    agent.expect(control.Hello)
    agent.send(control.Done(generation=3))
    with pytest.raises(ElasticError, match="the agent sent 'done', which only a worker may send"):
        session.next_world(after=0)


def test_without_a_launcher_the_world_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", control.ENV_FD):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sessions, "_world", None)
    assert not is_elastic()
    assert (current_world().rank, current_world().world_size) == (0, 1)


def test_outside_elastic_run_the_launchers_variables_say_who_we_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_world", None)  # no elastic.run has run in this process
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("RESILIN_GENERATION", "6")
    here = current_world()
    assert (here.rank, here.world_size, here.local_rank, here.generation) == (3, 4, 1, 6)


def test_a_lost_rank_is_reported_when_nobody_else_has_noticed(session: Session, agent: FakeAgent) -> None:
    in_generation(session, agent)
    session.interrupted(1, "the connection is gone")
    session.stuck(1, {2, 1}, "the connection is gone", unless_s=0.3)
    waiting = threading.Thread(target=lambda: session.next_world(after=1))
    waiting.start()
    lost = control.Interrupted(generation=1, reason="the connection is gone")
    assert agent.expect(control.Interrupted) == lost, "at once: the agent may be waiting for a store that is lost, too"
    assert agent.expect(control.Waiting) == control.Waiting(generation=1)
    told = agent.expect(control.Stuck)
    assert told == control.Stuck(generation=1, ranks=(1, 2), reason="the connection is gone")
    agent.send(world(2, ["a"]))
    waiting.join(WAIT_S)
    assert not waiting.is_alive()


def test_a_lost_rank_of_a_generation_that_an_agent_has_ended_is_not_reported(
    session: Session, agent: FakeAgent
) -> None:
    in_generation(session, agent)
    session.stuck(1, {1}, "the connection is gone", unless_s=0.2)
    agent.send(control.Abort(generation=1, ranks=(1,), reason="it died"))
    ended = threading.Event()
    threading.Thread(target=lambda: (session.next_world(after=1), ended.set()), daemon=True).start()
    assert not ended.wait(0.5)  # nothing is to be said in it
    agent.send(world(2, ["a"]))
    assert ended.wait(WAIT_S)
    session.committed(3)
    agent.expect(control.Waiting)
    agent.expect(control.Entering)
    agent.expect(control.Committed)  # and nothing between
