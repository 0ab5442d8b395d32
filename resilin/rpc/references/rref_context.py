"""Count the references to a value that lies at its owner, by PyTorch's protocol.

The owner keeps a value while anybody holds a fork of it. Who sends a reference to somebody makes a fork:

    the owner forks     the receiver is on the owner's list before the message leaves
    a user forks        the receiver asks the owner (FORK_REQUEST); when that has answered, the receiver tells the
                        sender (CHILD_ACCEPT), which holds its own reference until then
    a user lets go      it tells the owner (USER_DELETE), once it is confirmed and none of its children is pending

These three are told again until they are answered: all of them may come twice, and late.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from resilin._base.clock import Deadline, spell
from resilin.distributed.wire.error_codec import copy_error
from resilin.errors import OwnerLost, PeerLost, RpcError, RpcTimeout
from resilin.rpc.references.states import GloballyUniqueId, OwnedValue, UserReference
from resilin.rpc.serialization.messages import CHILD_ACCEPT, FORK_REQUEST, RREF, TURN_BITS, USER_DELETE
from resilin.rpc.worker_info import WorkerInfo

_MOST_GONE = 1 << 14  # forks that were let go: what comes late of one of them is not taken up

Wire = tuple[int, int, int, int, int, int, int]
"""A fork in a message: the ids of the value and the fork, its owner and sender, and the turn of the owner."""
Tell = Callable[[int, int, bytes, Callable[[BaseException | None], None]], object]
"""Sends a message of a kind to a peer until it answers; then calls what it is given, with an error when it is gone."""


def _gone_with(id: GloballyUniqueId, why: str) -> PeerLost:
    return PeerLost(f"the value of {id} is gone with its last holder: {why}")


class Fork:
    """What was made for the receiver of a message."""

    def __init__(
        self, context: RRefContext, state: OwnedValue | UserReference, fork: GloballyUniqueId, peer: int
    ) -> None:
        self._context, self._state, self.id, self._peer = context, state, fork, peer
        self.wire = (*state.id, *fork, state.owner.id, context.me.id, context.turn_of(state))

    def take_back(self) -> None:
        """Undo it: the message is not sent."""
        if isinstance(self._state, OwnedValue):
            self._context.drop_fork(self._state.id, self.id)
        else:
            self._context.accepted(self.id)


class RRefContext:
    """All references of one worker."""

    def __init__(
        self,
        me: WorkerInfo,
        worker: Callable[[int], WorkerInfo],
        turn: Callable[[int], int],
        before: Callable[[int], str],
        tell: Tell,
        wake: Callable[[], None],
        first: int,
    ) -> None:
        """turn: how many processes have been a worker before the one that is known. before: who was the last of them,
        and how it ended. first: the first id's number."""
        self.me, self._worker, self._turn, self._before, self._tell, self._wake = me, worker, turn, before, tell, wake
        self._lock = threading.RLock()
        self._next = first  # guarded by _lock
        self.own_turn = first >> TURN_BITS
        """How many processes had been this worker before."""
        self._ended: dict[int, tuple[int, str]] = {}  # guarded by _lock: workers that were lost: their turn, and why
        self._lost_values: dict[GloballyUniqueId, str] = {}  # guarded by _lock: which went with their holders, and why
        self._owners: dict[GloballyUniqueId, OwnedValue] = {}  # guarded by _lock
        self._forks: dict[GloballyUniqueId, dict[GloballyUniqueId, int]] = {}  # guarded by _lock: fork -> who has it
        self._users: dict[GloballyUniqueId, UserReference] = {}  # guarded by _lock, by fork
        self._children: dict[
            GloballyUniqueId, tuple[UserReference, int]
        ] = {}  # guarded by _lock: pending fork -> parent, peer
        self._gone: dict[GloballyUniqueId, None] = {}  # guarded by _lock
        self._dropped: deque[UserReference] = deque()  # by __del__, which may run anywhere
        self._deleting = 0  # guarded by _lock: deletions that are not answered
        self._settled = threading.Condition(self._lock)

    def new_id(self) -> GloballyUniqueId:
        """Return an id that nobody else has."""
        with self._lock:
            self._next += 1
            return GloballyUniqueId(self.me.id, self._next - 1)

    # --- at the owner ---

    def owner(self, id: GloballyUniqueId) -> OwnedValue:
        """Return the owned value called `id`, which may still have to come."""
        with self._lock:
            found = self._owners.get(id)
            if found is None:
                found = OwnedValue(id, self.me)
                turn, why = self._ended.get(id.created_on, (-1, ""))
                if id.created_on == self.me.id:
                    turn, why = self.own_turn - 1, self._before(self.me.id)
                why = self._lost_values.get(id, why if id.local_id >> TURN_BITS <= turn else "")
                if why:
                    found.settle(None, _gone_with(id, why))
                else:
                    self._owners[id] = found
                    self._forks.setdefault(id, {})
            return found

    def asked(self, id: GloballyUniqueId, fork: GloballyUniqueId) -> OwnedValue:
        """Return the value that the holder of `fork` asks for, which may still have to come.

        RpcError where it has let go of it since.
        """
        with self._lock:
            if fork in self._gone and id not in self._owners:
                raise RpcError(f"the value of {id} is gone: its last reference was let go")
            return self.owner(id)

    def add_fork(self, id: GloballyUniqueId, fork: GloballyUniqueId, holder: int) -> OwnedValue:
        """Note that `holder` has `fork` of the value called `id`."""
        with self._lock:
            found = self.owner(id)
            if fork in self._gone:
                if not self._forks.get(id):
                    self._forget(id)
            elif id in self._owners:
                self._forks[id][fork] = holder
            return found

    def drop_fork(self, id: GloballyUniqueId, fork: GloballyUniqueId) -> None:
        """Note that nobody has `fork` any more; the value goes with its last one."""
        with self._lock:
            forks = self._forks.get(id, {})
            forks.pop(fork, None)
            self._gone[fork] = None
            while len(self._gone) > _MOST_GONE:
                del self._gone[next(iter(self._gone))]
            if not forks:
                self._forget(id)

    def _forget(self, id: GloballyUniqueId) -> None:
        self._owners.pop(id, None)
        self._forks.pop(id, None)
        self._settled.notify_all()

    # --- at users ---

    def new_user(self, owner: WorkerInfo) -> UserReference:
        """Return a reference to what `owner` is about to make."""
        id, fork = self.new_id(), self.new_id()
        user = UserReference(id, fork, owner, self._turn(owner.id))
        with self._lock:
            self._users[fork] = user
        return user

    def turn_of(self, state: OwnedValue | UserReference) -> int:
        """Return how many processes had been its owner before the one that has the value."""
        return state.turn if isinstance(state, UserReference) else self.own_turn

    def created(self, user: UserReference, error: BaseException | None) -> None:
        """Take what the owner has answered to the call that makes the value."""
        if isinstance(error, PeerLost):
            user.error = OwnerLost(str(error), [user.owner.id])
        elif isinstance(error, RpcTimeout):
            user.error = RpcError(
                f"RRef creation via rpc.remote() timed out, and it is possible that the RRef on the owner node does "
                f"not exist: {error}"
            )
        elif error is not None:
            user.error = RpcError(f"RRef creation via rpc.remote() failed: {error}")
            user.error.__cause__ = error
        self._confirm(user)

    def _confirm(self, user: UserReference) -> None:
        with self._lock:
            user.confirmed = True
            waiting, user.waiting = user.waiting, []
            self._settled.notify_all()
        for then in waiting:
            then()
        self._let_go_if_dropped(user)

    def fork(self, state: OwnedValue | UserReference, peer: int) -> Fork:
        """Make a fork of `state` for `peer`. RpcError where it refers to nothing."""
        if isinstance(state, UserReference):
            if state.deleted:
                raise RpcError("Cannot call fork an UserRRef after deletion.")
            if state.error is not None:
                raise copy_error(state.error)
        made = self.new_id()
        with self._lock:
            if isinstance(state, OwnedValue):
                self._owners[state.id] = state
                self._forks.setdefault(state.id, {})[made] = peer
            else:
                state.children += 1
                self._children[made] = state, peer
        return Fork(self, state, made, peer)

    def arrived(self, wire: Wire) -> OwnedValue | UserReference:
        """Return the reference that a fork, which has come in a message, is here.

        Its sender may not have heard that the owner is gone, and that another process has taken its place: that one is
        not asked for a value that it will never have.
        """
        id, fork = GloballyUniqueId(*wire[:2]), GloballyUniqueId(*wire[2:4])
        owner, parent, turn = wire[4:]
        replaced = turn < self._turn(owner)
        if owner == self.me.id:
            state = OwnedValue(id, self.me) if replaced else self.owner(id)
            if replaced:
                state.settle(None, _gone_with(id, self._before(owner)))
            if parent == owner:
                self.drop_fork(id, fork)
            else:
                self._say(parent, CHILD_ACCEPT, id, fork)
            return state
        user = UserReference(id, fork, self._worker(owner), turn)
        with self._lock:
            self._users[fork] = user
        if replaced:
            self._answered(user, parent, PeerLost(f"the value is lost with its owner: {self._before(owner)}", [owner]))
        elif parent == owner:
            self._confirm(user)
        else:
            self._say(owner, FORK_REQUEST, id, fork, partial(self._answered, user, parent))
        return user

    def _answered(self, user: UserReference, parent: int, error: BaseException | None) -> None:
        if error is not None:
            user.error = OwnerLost(f"{user}: {error}", [user.owner.id])
        if parent == self.me.id:
            self.accepted(user.fork)
        else:
            self._say(parent, CHILD_ACCEPT, user.id, user.fork)
        self._confirm(user)

    def accepted(self, fork: GloballyUniqueId) -> None:
        """Note that a child of a reference is on its owner's list, or never will be."""
        with self._lock:
            user, _ = self._children.pop(fork, (None, 0))
            if user is not None:
                user.children -= 1
        if user is not None:
            self._let_go_if_dropped(user)

    def when_confirmed(self, states: Iterable[OwnedValue | UserReference], then: Callable[[], None]) -> bool:
        """Call `then` when all `states` are; False, and nothing is done, where they are already."""
        with self._lock:
            open_ = [state for state in states if isinstance(state, UserReference) and not state.confirmed]
            left = len(open_)

            def one() -> None:
                nonlocal left
                with self._lock:
                    left -= 1
                    last = left == 0
                if last:
                    then()

            for state in open_:
                state.waiting.append(one)
        return bool(open_)

    # --- letting go ---

    def drop(self, user: UserReference) -> None:
        """Note that nobody here holds `user` any more. Any thread, also while it collects garbage."""
        self._dropped.append(user)
        self._wake()

    def sweep(self) -> None:
        """Tell owners of the references that were dropped."""
        while self._dropped:
            user = self._dropped.popleft()
            user.dropped = True
            self._let_go_if_dropped(user)

    def _let_go_if_dropped(self, user: UserReference) -> None:
        with self._lock:
            if not user.dropped or user.deleted or not user.confirmed or user.children:
                return
            self._start_deleting(user)
        self._delete(user)

    def _start_deleting(self, user: UserReference) -> None:
        user.deleted = True
        self._users.pop(user.fork, None)
        self._deleting += 1

    def _delete(self, user: UserReference) -> None:
        if isinstance(user.error, OwnerLost):
            self._deleted(None)  # there is nobody to tell
            return
        self._say(user.owner.id, USER_DELETE, user.id, user.fork, self._deleted)

    def _deleted(self, error: BaseException | None) -> None:
        with self._lock:
            self._deleting -= 1
            self._settled.notify_all()

    def delete_all(self, timeout_s: float | None) -> None:
        """Let go of every reference to others, and wait until their owners know. RpcError when they do not answer."""
        deadline = Deadline(timeout_s)
        self.sweep()
        with self._settled:
            done = self._settled.wait_for(
                lambda: not self._children and all(user.confirmed for user in self._users.values()), deadline.left()
            )
            users = list(self._users.values())
            for user in users:
                self._start_deleting(user)
        for user in users:
            self._delete(user)
        with self._settled:
            done = self._settled.wait_for(lambda: not self._deleting, deadline.left()) and done
            for id in [id for id, forks in self._forks.items() if not forks]:
                self._forget(id)
        if not done:
            raise RpcError(f"references to values of other workers were not let go within {spell(timeout_s)}")

    def leaks(self) -> str:
        """Return the values that are still referred to, for an error; empty: there are none."""
        with self._lock:
            return "; ".join(
                f"Leaking RRef {owner} with fork Ids {', '.join(map(str, self._forks.get(id, ()))) or 'none'}"
                for id, owner in self._owners.items()
            )

    # --- messages ---

    def _say(
        self,
        peer: int,
        kind: int,
        id: GloballyUniqueId,
        fork: GloballyUniqueId,
        then: Callable[[BaseException | None], None] = lambda error: None,
    ) -> None:
        if peer == self.me.id:
            self.heard(kind, id, fork, peer)
            then(None)
        else:
            self._tell(peer, kind, RREF.pack(*id, *fork), then)

    def heard(self, kind: int, id: GloballyUniqueId, fork: GloballyUniqueId, source: int) -> None:
        """Do what a message of the protocol asks for."""
        if kind == FORK_REQUEST:
            self.add_fork(id, fork, source)
        elif kind == USER_DELETE:
            self.drop_fork(id, fork)
        else:
            self.accepted(fork)

    def lost(self, peer: int, error: BaseException, turn: int) -> None:
        """Note that a worker is gone, with its references and values. turn: how many had been this worker before it."""
        with self._lock:
            self._ended[peer] = turn, str(error)
            unmade = [owner for id, owner in self._owners.items() if id.created_on == peer and not owner.begun]
            for id in [owner.id for owner in unmade if not self._forks[owner.id]]:
                self._forget(id)
            held = [(id, fork) for id, forks in self._forks.items() for fork, by in forks.items() if by == peer]
            pending = [fork for fork, (_, by) in self._children.items() if by == peer]
            users = [user for user in self._users.values() if user.owner.id == peer and user.error is None]
        for owner in unmade:
            owner.settle(None, _gone_with(owner.id, str(error)))
        for id, fork in held:
            self.drop_fork(id, fork)
            with self._lock:
                if id not in self._owners:  # somebody to whom it was passed on may still ask for it
                    self._lost_values[id] = str(error)
                    while len(self._lost_values) > _MOST_GONE:
                        del self._lost_values[next(iter(self._lost_values))]
        for fork in pending:
            self.accepted(fork)
        for user in users:
            user.error = OwnerLost(f"{user}: the value is lost with its owner: {error}", [peer])
            self._confirm(user)

    def debug_info(self) -> dict[str, str]:
        """Return counts, under PyTorch's names."""
        with self._lock:
            return {
                "num_owner_rrefs": str(len(self._owners)),
                "num_pending_users": str(sum(not user.confirmed for user in self._users.values())),
                "num_pending_futures": str(sum(not owner.value.done() for owner in self._owners.values())),
                "num_forks": str(sum(len(forks) for forks in self._forks.values())),
                "num_pending_children": str(len(self._children)),
            }
