"""End a node's workers with the job or with the node, and say what that makes of the node's outcome."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine, Sequence
from typing import Any

from resilin.elastic import control, failure
from resilin.elastic.agent.config import Outcome
from resilin.elastic.agent.slots import LocalSlot
from resilin.elastic.failure import Failure
from resilin.elastic.membership import succession
from resilin.elastic.records import Closed, Generation
from resilin.errors import RendezvousClosed, ResilinError, StoreRefused


async def stop(slot: LocalSlot, grace_s: float, number: int = signal.SIGTERM) -> None:
    """End the process in `slot` on purpose: signal `number`, and after `grace_s` SIGKILL."""
    assert slot.worker is not None
    slot.stopping = True
    await slot.worker.stop(grace_s, number)


async def finish(slots: Sequence[LocalSlot], grace_s: float, *, succeeded: bool) -> None:
    """Wait until all workers have ended. If the job succeeded: tell those that are done, stop those that came late.

    Who has returned from its function may have been left out of the world by then, or its word may be on its way: all
    are told, and those that are not known to be done are asked to leave in a way that does not disturb one that is.
    """
    pending: list[Coroutine[Any, Any, object]] = []
    if succeeded:
        for slot in slots:
            if slot.running and slot.endpoint:
                slot.send(control.Finish())
            if slot.running and slot.state in ("running", "ready"):
                slot.stopping = True
                pending.append(_let_go(slot, "the job has succeeded", grace_s))
                slot.send(control.Leave(reason=slot.asked))  # nobody needs anything of it any more
    await asyncio.gather(*pending, *(s.worker.ended for s in slots if s.worker is not None and s.running))
    await asyncio.sleep(0)  # the slots' own callbacks run first


def leave(slots: Sequence[LocalSlot], number: int, grace_s: float) -> Coroutine[Any, Any, None]:
    """Graceful end of this node: its workers finish their step (in place) or get the same signal."""
    reason = failure.signal_name(number)
    return _all([_let_go(slot, reason, grace_s, number) for slot in slots if slot.running])


def dismiss(slots: Sequence[LocalSlot], grace_s: float) -> Coroutine[Any, Any, None] | None:
    """Let the workers of a node that stays in the job finish their step and end; None: all of them know already."""
    pending: list[Coroutine[Any, Any, object]] = []
    for slot in slots:
        if not slot.running or slot.dismissed or slot.stopping or slot.state == "done":
            continue
        slot.dismissed = True
        pending.append(_let_go(slot, "the node is to take no part", grace_s))
    return _all(pending) if pending else None


async def _all(pending: Sequence[Coroutine[Any, Any, object]]) -> None:
    await asyncio.gather(*pending)


def settled(closed: Closed, slots: Sequence[LocalSlot], first: Failure | None, late: Failure | None) -> Outcome:
    """Say what the job's end means for this node.

    first: the first failure here in the last generation. late: of a worker that failed after all were done.
    """
    if closed.outcome == "failed":
        known = Failure.from_json(closed.failure) if closed.failure else first
        return Outcome(code=closed.code, reason=closed.reason, failure=known if closed.code == 1 else None)
    if late is not None:
        return Outcome(code=1, reason=late.sentence, failure=late)
    own = [slot.failure for slot in slots if slot.state == "failed" and slot.failure is not None]
    if len(own) == len(slots):
        reason = "the job has succeeded without this node"
        return Outcome(code=1, reason=reason, failure=own[0], title="all workers of this node failed")
    return Outcome(code=0, reason=closed.reason)


def came_late(job: str, closed: Closed) -> Outcome:
    """For a node that came when the job had ended."""
    text = (
        f"job {job!r} has {closed.outcome} ({closed.reason}); its last nodes are leaving. "
        "Use another name (--rdzv-id), or the same one when they are gone"
    )
    return Outcome(code=4, reason=text, error=RendezvousClosed(text))


def forgotten(job: str, last: Generation | None, known: Generation | None) -> Outcome | None:
    """For a node that carried out `last`, while the store knows of `known`; None when the one goes back to the other.

    The job's end may have been removed while this node was cut off; or the store was one process's memory, and a new
    process has begun with none of it, from which others, who came to it first, have begun the job anew.
    """
    if last is None or (known is not None and succession.goes_back_to(known, last)):
        return None
    other = known is not None and (known.origin != last.origin or known.refills != last.refills)
    has = f"{known.number}{', of another beginning' if other else ''}" if known else "none"
    text = (
        f"generation {last.number} was the last one here, and the store has {has}: "
        f"job {job!r} has ended without this node, or the store has lost its data"
    )
    return Outcome(code=4, reason=text, error=RendezvousClosed(text))


def refused(refusal: ResilinError, first: Failure | None) -> Outcome:
    """For a node whose calls the store answers with an error. `first`: the first failure here."""
    text = f"gave up: the store refuses this node's calls, and would refuse them again ({refusal})"
    return Outcome(code=5 if isinstance(refusal, StoreRefused) else 3, reason=text, failure=first, error=refusal)


def _let_go(slot: LocalSlot, reason: str, grace_s: float, number: int = signal.SIGTERM) -> Coroutine[Any, Any, None]:
    """Ask the running process in `slot` to finish its step and end (in place), or with signal `number`; its end."""
    if not slot.endpoint:
        return stop(slot, grace_s, number)
    assert slot.worker is not None
    slot.ask_to_leave(reason, grace_s)
    slot.worker.wake()
    return _killed_after(slot, grace_s)


async def _killed_after(slot: LocalSlot, grace_s: float) -> None:
    worker = slot.worker
    assert worker is not None
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(worker.ended), grace_s)
        return
    slot.stopping = True  # not before: a failure of its own until now is one
    worker.kill(signal.SIGKILL)
    await worker.ended
