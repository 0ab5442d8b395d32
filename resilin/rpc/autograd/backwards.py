"""Run distributed backwards: each worker walks its part of the graph, and tells the others by few kinds of messages.

    GRADIENT   what came in a message gets these gradients, or none: each message is answered so, once per backward
    BEGIN      take part, though nothing may come: these messages were sent to you; those that never came get none
    ASK        are you still at it? ALIVE, or DONE
    DONE       this worker's part has ended; the workers that its graph leads to, and from
    FAILED     this worker's part has failed
    ABORT      the backward has failed

The worker on which `backward` is called is its *root*: it waits for the DONE of every worker that it hears of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

from resilin._base.clock import SYSTEM, spell
from resilin.core.tensor import Tensor, wrap
from resilin.errors import PeerLost, RpcError, RpcTimeout, UsageError
from resilin.rpc.autograd.contexts import Contexts, DistAutogradContext, not_found
from resilin.rpc.autograd.local_backward import LocalBackward
from resilin.rpc.autograd.nodes import RecvRpcBackward
from resilin.rpc.autograd.tasks import Over, Task, check_roots, remember

GRADIENT, BEGIN, ASK, ALIVE, DONE, FAILED, ABORT = range(7)
Message = tuple[Any, ...]
"""What it is, the id of the context and of the backward (its root and its number there), whether the graph is kept."""
GRADIENTS_AT = 6
"""Where a GRADIENT message has the gradients."""
Say = Callable[[int, Message, "RecvRpcBackward | None"], None]
"""Sends a message to a worker; the third: whose gradients are in it."""
_ASK_S = 0.25  # until the root asks those that are not done; longer each time, at most _LONGEST_ASK_S
_LONGEST_ASK_S = 2.0


class Backwards:
    """Those that one worker takes part in.

    say: sends a message. failed: makes what travels of an error. rebuilt: the error that came. pause: is called before
    a wait. limit: seconds after which a silent worker is given up; 0: never.
    """

    def __init__(
        self,
        me: int,
        contexts: Contexts,
        say: Say,
        failed: Callable[[BaseException], Any],
        rebuilt: Callable[[Any, int], BaseException],
        pause: Callable[[], None],
        limit: Callable[[], float],
        name_of: Callable[[int], str],
    ) -> None:
        self._me, self.contexts, self._say = me, contexts, say
        self._described, self._rebuilt, self._pause, self._limit, self._name_of = failed, rebuilt, pause, limit, name_of
        self._numbers = count(1)
        self._at_root: dict[tuple[int, int], Task] = {}  # backwards that this worker is the root of

    @property
    def running(self) -> int:
        """Return how many backwards this worker takes part in."""
        return len({task.id for task in self._tasks()})

    def _tasks(self) -> set[Task]:
        """Return what is under way here."""
        tasks = [*self._at_root.values(), *(context.task for context in self.contexts.all())]
        return {task for task in tasks if task is not None}

    # --- at the root ---

    def backward(self, context_id: int, roots: Sequence[Tensor], retain_graph: bool) -> None:
        """Run a backward from `roots`; see `resilin.distributed.autograd.backward`."""
        context = self.contexts.get(context_id)
        check_roots(roots)
        if context.lost is not None:
            raise PeerLost(f"backward of autograd context {context_id}: {context.lost}", context.lost.ranks)
        task = Task(context, (self._me, next(self._numbers)), retain_graph)
        task.parties = dict.fromkeys([*task.peers, self._me], False)
        self._enter(context, task)
        self._at_root[task.id] = task
        try:
            with task.turn:
                self._start(task, roots)
            self._work(task)
            self._wait(task)
        except BaseException as error:
            self._fail(task, error)
            if not isinstance(error, Exception):
                raise
        finally:
            del self._at_root[task.id]
        raised = task.error
        if raised is not None:
            try:
                raise raised
            finally:
                del raised, task  # the frames of its traceback would keep them

    def _wait(self, task: Task) -> None:
        self._pause()
        pause, begun = _ASK_S, SYSTEM.monotonic()
        while not task.over.acquire(timeout=pause):
            pause = min(2 * pause, _LONGEST_ASK_S)
            limit, now = self._limit(), SYSTEM.monotonic()
            for party in [each for each, done in list(task.parties.items()) if not done]:
                if party != self._me and limit and now - task.heard.get(party, begun) > max(limit, 2 * pause):
                    error = RpcTimeout(
                        f"backward of autograd context {task.context.id}: worker {self._name_of(party)!r} says nothing "
                        f"of its part since {spell(limit)}"
                    )
                    self._fail(task, error)
                    return
                self._try(task, partial(self._ask, task, party))

    def _ask(self, task: Task, party: int) -> None:
        if party == self._me:
            self._look_after(task)
        else:
            self._tell(party, ASK, task)

    def _party(self, task: Task, worker: int, peers: Sequence[int], done: bool) -> None:
        """Note what a worker has told the root of its part."""
        task.heard[worker] = SYSTEM.monotonic()
        with task.context.lock:
            for peer in (worker, *peers):
                task.parties.setdefault(peer, False)
            task.parties[worker] = task.parties[worker] or done
            if all(task.parties.values()):
                task.release()

    # --- everywhere ---

    def _enter(self, context: DistAutogradContext, task: Task) -> None:
        with context.lock:
            if context.ended:
                raise not_found(context.id)
            if context.task is not None:
                raise RpcError(
                    f"a backward of the autograd context {context.id}, which worker {context.task.id[0]} has begun, is "
                    "under way: begin the next one when it has ended"
                )
            context.task = task

    def _start(self, task: Task, roots: Sequence[Tensor]) -> None:
        """Look through the graph; tell others of what it does not lead to."""
        task.run = run = LocalBackward(
            task.keep, roots, task.sends, task.receives, partial(self._send, task), task.context.gradients
        )
        sources = {node.source for node in task.receives.values()}
        for peer in sorted({node.to for node in task.sends.values()} - sources - {task.id[0]}):
            self._begin(task, peer)
        for node in run.unreached:
            self._send(task, node, None)
        run.go_on()
        self._finish_if_done(task)

    def _begin(self, task: Task, peer: int) -> None:
        self._tell(peer, BEGIN, task, [place for place, node in list(task.waiting.items()) if node.to == peer])

    def _look_after(self, task: Task) -> None:
        """Have those whose gradients are waited for say which will never come."""
        for peer in sorted({node.to for node in list(task.waiting.values())}):
            self._begin(task, peer)

    def _tell(self, peer: int, what: int, task: Task, *rest: Any) -> None:
        self._say(peer, (what, task.context.id, *task.id, task.keep, *rest), None)

    def _work(self, task: Task) -> None:
        """Do the jobs of a task, unless another thread does: one at a time."""
        while task.jobs and task.turn.acquire(blocking=False):
            try:
                while task.jobs:
                    job = task.jobs.popleft()
                    if task.error is None:
                        self._try(task, job)
            finally:
                task.turn.release()

    def _try(self, task: Task, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # of hooks, Functions and peers: the root's
            self._fail(task, error, self._described(error))
            if not isinstance(error, Exception):
                raise

    def _deliver(self, task: Task, place: bytes, gradients: Sequence[Tensor | None] | None) -> None:
        send = task.waiting.pop(place, None)
        run = task.run
        if send is None or run is None:  # it was asked for twice
            return
        run.deliver(send, None if gradients is None else [None if g is None else g._array for g in gradients])
        del gradients
        run.go_on()
        self._finish_if_done(task)

    def _send(self, task: Task, node: RecvRpcBackward, arrays: list[Any] | None) -> None:
        """Answer a message that came: with gradients, or that nothing flows there."""
        gradients = None
        if arrays is not None and any(array is not None for array in arrays):
            gradients = [None if g is None else wrap(g, dev) for g, dev in zip(arrays, node.devices, strict=True)]
        peers = None
        if node.source == task.id[0] != self._me and self._is_done(task):
            self._commit(task)
            peers, task.told = sorted(task.peers), True
        self._say(node.source, (GRADIENT, task.context.id, *task.id, task.keep, node.place, gradients, peers), node)

    def _is_done(self, task: Task) -> bool:
        return task.run is not None and not task.run.left

    def _commit(self, task: Task) -> None:
        if task.run is not None:
            task.run.commit(task.context.gradients)

    def _finish_if_done(self, task: Task) -> None:
        if not self._is_done(task) or task.error is not None:
            return
        self._commit(task)
        peers = sorted(task.peers)
        self._leave(task, Over(False, peers, frozenset(task.receives)))
        if task.id[0] == self._me:
            self._party(task, self._me, peers, True)
        elif not task.told:
            self._tell(task.id[0], DONE, task, peers)

    def _leave(self, task: Task, over: Over) -> None:
        context = task.context
        with context.lock:
            if context.task is task:
                context.task = None
            remember(context, task.id, over)
        if task.run is not None:
            task.run.stop()
            task.run = None
        for node in task.receives.values():
            node.sink = None

    def _fail(self, task: Task, error: BaseException, told: Any = None) -> None:
        """End a task that has failed here (`told`: what travels of the error), or elsewhere; tell the others."""
        with task.context.lock:
            if task.error is not None:
                return
            at_root = task.id[0] == self._me
            task.error = self._rebuilt(told, self._me) if told is not None and at_root else error
        self._leave(task, Over(True))
        if at_root:
            self._abort(task, {*task.peers, *task.parties})
            task.release()
        elif told is not None:
            self._quietly(task.id[0], (FAILED, task.context.id, *task.id, task.keep, told))
        else:
            self._abort(task, task.peers)
        task.jobs.clear()

    def _abort(self, task: Task, peers: set[int]) -> None:
        for peer in peers - {self._me, task.id[0]}:
            self._quietly(peer, (ABORT, task.context.id, *task.id, task.keep))

    def _quietly(self, peer: int, message: Message) -> None:
        with suppress(PeerLost, TimeoutError, RpcError, UsageError):  # who is not reached has no part in this any more
            self._say(peer, message, None)

    # --- messages ---

    def heard(self, source: int, message: Message) -> None:
        """Do what a message of another worker asks for."""
        what, context_id, root, number, keep, *rest = message
        id = (root, number)
        context = self.contexts.find(context_id)
        task = None if context is None else context.task
        if what in (DONE, ALIVE, FAILED):
            waiting = self._at_root.get(id)
            if waiting is not None:
                self._hear_at_root(waiting, source, what, rest)
            return
        if context is None:
            if what != ABORT:
                self._quietly(root, (FAILED, context_id, *id, keep, self._described(not_found(context_id))))
            return
        over = context.over.get(id)
        if what == ABORT:
            self._aborted(context, id)
        elif over is not None:
            self._hear_late(source, what, message, over)
        else:
            try:
                task = self._taking_part(context, id, keep)
            except Exception as error:  # noqa: BLE001 - what makes it impossible here: the root's
                self._quietly(root, (FAILED, context_id, *id, keep, self._described(error)))
                return
            self._hear(task, source, what, rest)

    def _hear_at_root(self, task: Task, source: int, what: int, rest: Sequence[Any]) -> None:
        if what == FAILED:
            self._fail(task, self._rebuilt(rest[0], source))
        else:
            self._party(task, source, rest[0], what == DONE)

    def _hear_late(self, source: int, what: int, message: Message, over: Over) -> None:
        """Answer what comes of a backward that has ended here."""
        if over.failed:
            return
        _, context_id, root, number, keep, *rest = message
        if what == BEGIN:
            self._none_for(source, (context_id, root, number, keep), rest[0], over.places)
        elif what == ASK:
            self._quietly(root, (DONE, context_id, root, number, keep, over.peers))

    def _none_for(self, source: int, about: Message, places: Sequence[bytes], here: Any) -> None:
        for place in places:
            if place not in here:
                self._quietly(source, (GRADIENT, *about, place, None, None))

    def _taking_part(self, context: DistAutogradContext, id: tuple[int, int], keep: bool) -> Task:
        """Return this worker's task in a backward, begun where it is new."""
        with context.lock:
            task: Task | None = context.task
            if task is not None and task.id == id:
                return task
            if task is not None and task.id[0] == id[0] and task.id[1] < id[1]:  # its root has given it up
                self._aborted(context, task.id)
            task = Task(context, id, keep)
            self._enter(context, task)
            task.jobs.append(partial(self._start, task, ()))
        return task

    def _hear(self, task: Task, source: int, what: int, rest: Sequence[Any]) -> None:
        if what == GRADIENT:
            place, gradients, peers = rest
            task.jobs.append(partial(self._deliver, task, place, gradients))
            self._work(task)
            if peers is not None:
                self._party(task, source, peers, True)
            return
        self._work(task)
        about = (task.context.id, *task.id, task.keep)
        if what == BEGIN:
            self._none_for(source, about, rest[0], task.receives)
        elif task.error is None:
            done = task.run is None
            self._quietly(task.id[0], (DONE if done else ALIVE, *about, sorted(task.peers)))
            self._try(task, partial(self._look_after, task))

    def _aborted(self, context: DistAutogradContext, id: tuple[int, int]) -> None:
        task = context.task
        if task is not None and task.id == id:
            self._fail(task, RpcError(f"the backward of autograd context {context.id} has failed elsewhere"))
        else:
            with context.lock:
                remember(context, id, Over(True))

    # --- ends ---

    def end(self, context_id: int) -> set[int]:
        """Forget a context; return the workers that it was taken to from here."""
        context = self.contexts.end(context_id)
        if context is None:
            return set()
        task = context.task
        if task is not None:
            self._try(task, partial(_no_longer, context_id))
        with context.lock:
            context.sends.clear()
            context.receives.clear()
            return set(context.known)

    def lost(self, peer: int, error: PeerLost, turn: int) -> list[tuple[int, set[int]]]:
        """Note that a worker is gone; return its contexts, which are forgotten, each with who had it from here."""
        ended = [(id, self.end(id) - {peer}) for id in self.contexts.made_by_dead(peer, turn)]
        for context in self.contexts.all():
            context.known.discard(peer)
            if peer in context.peers():
                context.lost = context.lost or error
        for task in self._tasks():
            if peer in (task.id[0], *task.peers, *task.parties):
                gone = PeerLost(f"backward of autograd context {task.context.id}: {error}", error.ranks)
                mine = task.id[0] in (self._me, peer)
                self._fail(task, gone, None if mine else self._described(gone))
        return ended


def _no_longer(context_id: int) -> None:
    raise RpcError(
        f"Autograd context no longer valid! The context {context_id} was ended while its backward was under way, by "
        "another thread or worker"
    )
