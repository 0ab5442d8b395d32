"""Remember what one worker has heard from its agent, and what follows from it. Pure: no thread, no socket, no clock.

`Session` puts a lock, a thread and a descriptor around it, the simulation a simulated network.
"""

from __future__ import annotations

from dataclasses import dataclass

from resilin.elastic import control
from resilin.errors import ElasticError, WorldChanged


class Leaving(SystemExit):
    """Ends this worker after a commit because it was asked to leave. Exit code 0."""

    def __init__(self, reason: str) -> None:
        super().__init__(0)
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class Interruption:
    """Whoever waits for peers must raise `error`."""

    error: BaseException
    generation: int
    """A group of this generation or an older one that is being formed is not formed any more."""
    group: bool
    """Whether a group that runs is over, too."""


class AgentMessages:
    """The newest world, which generations are over, and who waits for this worker. The caller serializes all calls."""

    def __init__(self) -> None:
        self.world: control.World | None = None  # the newest one offered
        self.over = 0  # generations up to this one have ended
        self.why = ""  # what ended it
        self.pending = 0  # waits for us at the next commit
        self.asked: str | None = None  # to leave, and its agent has not answered yet
        self.leave: str | None = None  # it may, at the next commit; or at once, where it waits for a world
        self.finish = False
        self.lost: ElasticError | None = None  # the agent is gone
        self.generation = 0  # the one being joined or worked in
        self.forming = False  # between `offer` and `joined`
        self.standby = False  # no place for this worker in the newest world

    # ------------------------------------------------------------------------------ from the agent

    def heed(self, message: control.Message) -> Interruption | None:
        """Take in a message; ControlError when it is none that an agent sends."""
        if isinstance(message, control.World):
            self.world = message
            return self._unless_formed(message.number)
        elif isinstance(message, control.Pending):
            self.pending = max(self.pending, message.number)
            return self._unless_formed(message.number)
        elif isinstance(message, control.Standby):
            self.standby = True
        elif isinstance(message, control.Leave):
            self.leave, self.asked = message.reason, None
        elif isinstance(message, control.Stay):
            self.leave = self.asked = None
        elif isinstance(message, control.Finish):
            self.finish = True
        elif isinstance(message, control.Abort):
            self.over = max(self.over, message.generation)
            self.why = f"ranks {list(message.ranks)}: {message.reason}" if message.ranks else message.reason
            if self.over >= self.generation:
                return self._all(self.changed())
        else:
            raise control.ControlError(f"the agent sent {message.kind!r}, which only a worker may send")
        return None

    def _unless_formed(self, newer: int) -> Interruption | None:
        """Some member may have heard of generation `newer` before it entered ours, and never will: we must not wait."""
        if not self.forming or newer <= self.generation:
            return None
        return Interruption(error=self.changed(), generation=self.generation, group=False)

    def lose(self, error: ElasticError) -> Interruption | None:
        """The agent is gone. None when that makes no difference any more."""
        if self.finish:
            return None
        self.lost = error
        return self._all(error)

    def _all(self, error: BaseException) -> Interruption:
        return Interruption(error=error, generation=max(self.generation, self.over), group=True)

    def ask(self, reason: str) -> None:
        """Note that this worker was asked to leave: its agent is to say when, unless it has said so already."""
        if self.leave is None:
            self.asked = reason

    def waits(self) -> str | None:
        """Between two worlds what its agent has allowed in the last one is void: the others may be gone by now.

        Why it wants to leave, if it does: its agent is to be asked again.
        """
        if self.leave is not None and not self.finish:  # when all are done, nobody needs anything any more
            self.asked, self.leave = self.leave, None
        return self.asked

    def unanswered(self) -> bool:
        """Return whether its agent is about to say if it may leave, and nothing else ends the world before."""
        return self.asked is not None and self.lost is None and self.over < self.generation

    # ------------------------------------------------------------------------------ from the program

    def offer(self, after: int, returned: bool = False) -> control.World | None:
        """A world above `after` that is not over, now being formed; None: not yet. Raises what ends this worker.

        returned: whether its function has, in a world that has ended: then None, too, when all are done (`finish`).
        """
        if returned and self.finish:
            return None
        self._raise_if_ending()
        world = self.world
        if world is None or world.number <= max(after, self.over):
            return None
        self.generation, self.forming, self.standby = world.number, True, False
        return world

    def joined(self, generation: int) -> None:
        """The group of `generation` is there. WorldChanged when it is over already."""
        self.forming = False
        newer = self.world is not None and self.world.number > generation
        if self.over >= generation or newer:  # a member may have skipped this world for the newer one
            raise self.changed(generation)

    def wanted(self) -> bool:
        """Return whether `at_commit` would raise, if this worker may leave."""
        return bool(self.pending > self.generation or self.leave or self.over >= self.generation or self.lost)

    def at_commit(self, step: int, may_leave: bool = True) -> None:
        """`step` is committed. Raises WorldChanged or Leaving when somebody waits for this boundary.

        may_leave: False: others count on this worker for one more step, whether it was asked to leave or not.
        """
        if may_leave or self.lost is not None:
            self._raise_if_ending()
        if self.over >= self.generation:
            raise self.changed()
        if self.pending > self.generation:
            text = f"generation {self.pending} waits at step {step}; nothing is rolled back"
            raise WorldChanged(text, self.generation)

    def at_end(self) -> bool:
        """Return whether all are done. WorldChanged when a new world came first."""
        if self.finish:
            return True
        self._raise_if_ending()
        newest = self.world.number if self.world is not None else 0
        if self.over >= self.generation or max(self.pending, newest) > self.generation:
            raise self.changed()
        return False

    def changed(self, generation: int = 0) -> WorldChanged:
        """The error that ends `generation` (0: the present one)."""
        number = generation or self.generation
        return WorldChanged(f"generation {number} ended: {self.why or 'a newer world is ready'}", number)

    def _raise_if_ending(self) -> None:
        if self.lost is not None:
            raise self.lost
        if self.leave is not None:
            raise Leaving(self.leave)
