"""When the watchdog looks at workers that say nothing, without processes."""

from types import SimpleNamespace

from resilin.elastic import control
from resilin.elastic.agent.watchdog import Watchdog
from resilin.elastic.deciding.view import View
from resilin.elastic.hangs.pace import FIRST_S
from resilin.elastic.records import Generation, GenerationMember
from resilin.testing.clock import FakeClock


def generation(number):
    return Generation(
        number=number, kind="inplace", members=(GenerationMember("a", 0, 1, 0),), nodes=("a",), master_addr="h",
        master_port=1, restarts_used=0, reason="",
    )  # fmt: skip


def test_from_its_first_step_in_a_world_on_a_worker_may_be_silent_for_its_limit_and_no_longer():
    clock = FakeClock()
    slot = SimpleNamespace(
        index=0, incarnation=1, rank=0, state="ready", endpoint="here", sent=1, sent_at=clock.monotonic(),
        running=True, stopping=False,
    )  # fmt: skip
    config = SimpleNamespace(
        node_id="a", host="h", hang_timeout_s=1.0, compare_ranks=False, job=SimpleNamespace(name="job")
    )
    reporter = SimpleNamespace(line=None)
    looks = []

    def step():
        view = View(generation=generation(slot.sent))
        looks.append(watchdog.look(view, clock.monotonic()) - clock.monotonic())

    watchdog = Watchdog(config, [slot], None, reporter, step, None, clock)
    step()
    for number in (1, 2):
        slot.sent, slot.sent_at = number, clock.monotonic()
        watchdog.heard(slot, control.Committed(generation=number, step=1))
    assert looks == [FIRST_S, 1.0, 1.0]
