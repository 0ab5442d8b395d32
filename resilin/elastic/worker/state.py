"""Keep `State`: what must be equal on all ranks after a step, and back at the last commit after a failure."""

from __future__ import annotations

import copy
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import resilin.distributed as dist
from resilin._base import fault_points, trace
from resilin._base.text import shown
from resilin.core import device, rng
from resilin.core.host_copies import on_host
from resilin.core.tensor import Tensor
from resilin.data.elastic_sampler import ElasticSampler, StepPlan
from resilin.ddp.wrapper import steps_in_gradients
from resilin.distributed.api.reconfigurable import Version
from resilin.elastic.ledger import Entry, Ledger
from resilin.elastic.worker import handover, registered_objects, registered_samplers, session, sharded_part, trees
from resilin.elastic.worker.digests import digest
from resilin.elastic.worker.due_work import DueWork
from resilin.elastic.worker.sharded_part import DividedPart, Stand
from resilin.errors import StateError, UsageError
from resilin.shards import progress

CONSENT = (
    "keep plain values, containers, arrays and tensors there, or give State(..., weights_only=False) on all ranks: "
    "newcomers then unpickle what survivors send, which can run any code of theirs"
)
_MOST_STEPS = 1 << 62


@dataclass(frozen=True, slots=True)
class Small:
    """Everything of a commit that is copied."""

    step: int
    generation: int
    """The one the step was applied in; 0: none."""
    former: int
    """Generations of the jobs before, when training went on from a checkpoint."""
    parts: dict[str, Any]
    plain: dict[str, Any]
    rng: Any
    versions: dict[str, Version] = field(default_factory=dict)
    """Of objects whose state is divided."""

    def validate(self) -> None:
        """ValueError for numbers of steps and generations that nobody can have counted."""
        for number in (self.step, self.generation, self.former):
            if not 0 <= number < _MOST_STEPS:
                raise ValueError(f"step, generation or former generations: {shown(number)}")

    def digests(self) -> dict[str, bytes]:
        """A hash per object. The random state is left out: ranks may draw differently outside shards."""
        hashes = {name: digest(small) for name, small in self.parts.items()}
        return {**hashes, "plain values and step": digest([self.step, self.former, self.plain])}


@dataclass(slots=True)
class Commit:
    """The last commit of this rank."""

    small: Small
    guards: list[tuple[Tensor, int]]
    """Guarded tensors and the number of their writes: any other means that a later step has begun to be applied."""
    counts: dict[str, int]
    """Guarded tensors per object, in the order of `guards`."""
    copies: list[Any] = field(default_factory=list)
    """With snapshot=True: copies of the guarded tensors, on their devices."""


class State:
    """Registers what `@elastic.run` keeps equal on all ranks and restores after a failure.

    Objects that have `state_dict()` and `load_state_dict()` (modules, optimizers, schedulers, samplers, your own) are
    registered by keyword, and so is a DataLoader over an ElasticSampler, for its sampler; any other value is a plain
    attribute, equal on all ranks by contract:

        state = elastic.State(model=model, optimizer=optimizer, sampler=sampler, best=0.0)
        ...
        optimizer.step()
        state.best = max(state.best, accuracy)
        state.commit(plan)          # the last statement of every step, right after optimizer.step()

    A commit copies what is small (buffers, options, sampler, scalars, the random state). Parameters and optimizer state
    are not copied: a rank that is interrupted between `optimizer.step()` and `commit` takes them from another rank.
    snapshot=True copies them, too: needed only when collectives run between the first write of a step to a parameter or
    to optimizer state and its `commit`.

    Without a snapshot, whether such a step had begun is told by counting in-place writes: those of optimizers, of every
    in-place operation, and through `.data` and `.detach()`. Writes into the array that `.numpy()` returns are not
    counted: where they may be followed by a collective before `commit`, use snapshot=True, which restores whatever was
    written. Buffers, plain values and other objects are always copied and always restored.

    State travels to newcomers as plain values, containers, arrays and tensors; nothing of it is run there. What else an
    object keeps in its state_dict(), or a plain value is (an object of a class of your own), is refused before training
    begins: with weights_only=False it is pickled, and a newcomer unpickles it, and runs what the sender made it to run.
    """

    _parts: dict[str, registered_objects.Part]
    _plain: dict[str, Any]
    _generation: int
    _former: int
    _due_work: DueWork[State]

    def __init__(self, *, snapshot: bool = False, weights_only: bool = True, **objects: Any) -> None:
        fields = self.__dict__
        fields["_parts"], fields["_plain"] = {}, {}
        fields["_snapshot"], fields["_weights_only"] = snapshot, weights_only
        fields["_loaders"] = registered_samplers.loaders(objects)
        objects.update((name, loader.batch_sampler.sampler) for name, loader in self._loaders.items())
        fields["_samplers"] = registered_samplers.samplers(objects, self)
        fields["_objects"] = {}
        fields["_step"] = 0
        fields["_generation"] = 0  # the step was applied in
        fields["_former"] = 0  # generations of the jobs that this one goes on from: the ledger counts all of them
        fields["_sealed"] = ""  # the fingerprint of the end, where somebody asked for it
        fields["_settled"] = False  # whether this rank was ever made equal to the others
        fields["_last"] = None
        fields["_ledger"] = None
        fields["_due_work"] = DueWork[State]()
        fields["_given"] = None  # the step that `elastic.steps` gave last, until it is committed
        for name, value in objects.items():
            if hasattr(type(self), name):
                raise UsageError(f"State: {name!r} is a name of State itself; register the object under another one")
            if hasattr(value, "state_dict"):
                self._parts[name] = registered_objects.part_of(name, value)
                self._objects[name] = value
            else:
                self._plain[name] = value

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__
        for table in ("_loaders", "_objects", "_plain"):
            if name in fields.get(table, ()):
                return fields[table][name]
        raise AttributeError(
            f"State has no {name!r}; registered: {', '.join([*self._objects, *self._plain]) or 'nothing'}"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._parts:
            raise UsageError(f"State: {name!r} is a registered object and cannot be replaced; change it in place")
        if hasattr(type(self), name):
            raise UsageError(f"State: {name!r} is a name of State itself")
        self._plain[name] = value

    @property
    def step(self) -> int:
        """Number of committed steps since the start of training."""
        step: int = self.__dict__["_step"]
        return step

    def _largest_world(self) -> int:
        """As many workers as the registered samplers have shards, or samples, for; 0: any number."""
        return min((sampler.largest_world for sampler in self.__dict__["_samplers"]), default=0)

    def commit(self, *plans: StepPlan) -> None:
        """Declare the step applied: move the sampler over its plan, copy what is small, write the ledger.

        Call it as the last statement of a step, right after `optimizer.step()`; what belongs to the step (a scheduler's
        step, an average of weights) comes before it. What a device found wrong with indices is raised first, with
        nothing committed. Gradients are no part of the commit: when they were accumulated over several plans, commit
        those together. Raises WorldChanged, with the step committed, when a new world waits for this boundary;
        `@elastic.run` handles it.
        """
        with trace.span("elastic.commit", trace.SpanKind.ELASTIC, step=self.step + 1):
            self._commit(plans)

    def _commit(self, plans: Sequence[StepPlan]) -> None:
        self._due_work.refuse_nested("State.commit")
        fault_points.reached("commit")
        device.check_all()
        if plans:
            if len(self._samplers) != 1:
                raise UsageError(
                    f"State.commit(plan): expected one registered ElasticSampler to move, found {len(self._samplers)}; "
                    "register it as State(sampler=sampler) or move samplers yourself and call commit()"
                )
            if dist.is_initialized():
                progress.check_complete(dist.default_group(), "State.commit")
            self._check_gradients(plans)
            for plan in plans:
                self._samplers[0].advance(plan)
        after = self._former + self._generation
        self.__dict__["_step"] += 1
        self.__dict__["_generation"] = session.world().generation
        self._capture()
        tie = session.active()
        if self._ledger is not None:
            for plan in plans:
                self._ledger.append(self._entry(plan, after))
                after = self._former + self._generation
        self.__dict__["_given"] = None
        self._due_work.committed(self, self.step)
        if tie is not None:
            tie.committed(self.step, functools.partial(self._hand_over, tie))

    def on_commit(self, *, every: int, do: Callable[[State], object]) -> None:
        """Have `do(state)` called with every commit whose number (`step`) is a multiple of `every`, on all ranks.

            state.on_commit(every=500, do=lambda state: checkpoint.save_async("run7", state, step=state.step))

        It runs within `commit`, with the committed state, before the world may change there: a new world, a worker that
        leaves, and the end of training wait for it, and all ranks wait for each other behind it. So `do` may use
        collectives, and nothing that is due is skipped. Commits are counted from the start of training, whoever of the
        workers is still there, and on from a loaded checkpoint. Each is due once; when a rank is lost while `do` runs,
        it is called again for that commit, by all ranks of the next world before they go on.

        Several are called in the order in which they were registered. Register on all ranks alike: inside of
        `@elastic.run`'s function (what its call before had registered is gone, so nothing doubles), or before, once.
        An error of `do` comes out of `commit`, with a note that says whose it is; the step stays committed. `do` must
        not change the state, and cannot commit.
        """
        self._due_work.register(self, self.step, every, do)

    def _hand_over(self, tie: session.Tie) -> bool:
        """Whether this rank may leave: where state is divided, those that leave together say so first, and give what
        nobody else has to those that stay. A collective then, after the commit: a failure in it costs nothing."""
        divided = self._divided()
        if not divided or session.world().world_size == 1:
            return True
        group = dist.default_group()
        leaving = handover.agree(tie.asked_to_leave(), group)
        handover.hand_over(divided, self._last.small.versions, leaving, group)
        return group.rank() in leaving

    def _check_gradients(self, plans: Sequence[StepPlan]) -> None:
        """Refuse gradients of steps that were committed before: the next world would not have them."""
        for thing in self._objects.values():
            held = steps_in_gradients(thing) - {plan.step for plan in plans}
            if held:
                raise UsageError(
                    f"State.commit: the gradients still hold steps {sorted(held)} of the sampler, committed before "
                    f"step {plans[0].step}; a change of the world between would lose them. Call zero_grad() in every "
                    "step, or commit the steps that are accumulated together: commit(*plans) after optimizer.step()"
                )

    def _entry(self, plan: StepPlan, after: int) -> Entry:
        world, sampler = session.world(), self._samplers[0]
        return Entry(
            plan.epoch, plan.step, plan.position, plan.size, self._former + world.generation, world.rank, after,
            samples=sampler.samples_per_epoch, length=sampler.length, seed=sampler.seed if sampler.shuffle else None,
        )  # fmt: skip

    def fingerprint(self) -> str:
        """sha256, in hex, of all that is registered: parameters, buffers, optimizer, sampler, plain values, ...

        The random state is left out: ranks may draw differently outside of shards. Equal on all ranks after a commit,
        and with a fixed number of shards equal for any world and any history. With divided state (ZeRO) all ranks call
        it together, while their world lasts.
        """
        hasher = hashlib.sha256(digest([self.step, self._plain]))
        for name, part in sorted(self._parts.items()):
            small, tensors = part.capture()
            hasher.update(name.encode() + digest(small) + digest([on_host(tensor) for tensor in tensors]))
            if isinstance(part, DividedPart):
                hasher.update(part.whole_digest())
        return hasher.hexdigest()

    def _seal(self) -> None:
        """Remember the fingerprint of the end for those who ask for it when the world has ended."""
        self.__dict__["_sealed"] = self.fingerprint()

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: step, plain values, random state and every object's own state_dict().

        An optimizer whose state is divided gives it where `consolidate_state_dict` has gathered it; checkpoints that
        all ranks write (`checkpoint.save`) take `sharded_state_dict`.
        """
        return self._tree({name: part.saved.state_dict() for name, part in self._parts.items()}, rng.get_rng_state())

    def sharded_state_dict(self) -> dict[str, Any]:
        """Return `state_dict()` with the objects themselves: `checkpoint` takes what each offers. All ranks call it.

        The random state is that of rank 0.
        """
        box: list[Any] = [rng.get_rng_state()]
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.broadcast_object_list(box, group_src=0, weights_only=True)
        return self._tree({name: part.saved for name, part in self._parts.items()}, box[0])

    def _tree(self, objects: dict[str, Any], random: Any) -> dict[str, Any]:
        tree = {
            "step": self.step,
            "generation": self._former + self._generation,
            "plain": copy.deepcopy(self._plain),
            "rng": random,
            "objects": objects,
        }
        extra = {name: part.thing.extra_state() for name, part in self._divided().items()}
        if extra := {name: state for name, state in extra.items() if state is not None}:
            tree["extra"] = extra
        return tree

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint. Where state is divided, all ranks call it.

        UsageError when it holds other objects than this State; StateError when one did not take its state over.
        """
        if set(state["objects"]) != set(self._objects):
            raise UsageError(
                f"State.load_state_dict: expected the objects {sorted(self._objects)}, got {sorted(state['objects'])}"
            )
        for name, thing in self._objects.items():
            self._parts[name].saved.load_state_dict(state["objects"][name])
            # a sampler keeps its own batch_size and shards, and divided state is whole on one rank only
            if not isinstance(thing, ElasticSampler) and name not in self._divided():
                trees.check_loaded(name, thing, state["objects"][name])
        self._load_rest(state)

    def load_sharded_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint that has filled the objects already."""
        self._load_rest(state)

    def _load_rest(self, state: dict[str, Any]) -> None:
        rng.set_rng_state(state["rng"])
        for name, extra in state.get("extra", {}).items():
            self._divided()[name].thing.load_extra_state(extra)
        self._plain.update(copy.deepcopy(state["plain"]))
        self.__dict__["_step"] = int(state["step"])
        self.__dict__["_former"] = int(state.get("generation", 0))
        if self._last is not None:  # a generation is running: failures go back to here
            self._capture()

    def __repr__(self) -> str:
        return f"<State step={self.step} {', '.join([*self._objects, *self._plain])}>"

    # ------------------------------------------------------------------ for the recovery loop

    def _capture(self, versions: dict[str, Version] | None = None) -> None:
        """Make the present the last commit; of divided state what has the `versions`, which goes back with the others'.

        None: what is in use.
        """
        if versions is None:
            for part in self._divided().values():
                part.thing.keep()
            versions = {name: part.thing.version() for name, part in self._divided().items()}
        captured = {name: part.capture() for name, part in self._parts.items()}
        small = Small(
            step=self.step,
            generation=self._generation,
            former=self._former,
            parts={name: tree for name, (tree, _) in captured.items()},
            plain=copy.deepcopy(self._plain),
            rng=rng.get_rng_state(),
            versions=versions,
        )
        if self._weights_only:
            self._check_plain(small)
        guarded = [tensor for _, tensors in captured.values() for tensor in tensors]
        counts = {name: len(tensors) for name, (_, tensors) in captured.items()}
        copies: list[Any] = []
        if self._snapshot:
            reusable = self._last.copies if self._last is not None else []
            copies = [_copied(tensor, reusable, index) for index, tensor in enumerate(guarded)]
        self.__dict__["_last"] = Commit(small, [(tensor, tensor._writes) for tensor in guarded], counts, copies)

    def _check_plain(self, small: Small) -> None:
        """UsageError for what no newcomer would take without consent: now, and not when a worker has died."""
        for name, tree in (*small.parts.items(), *small.plain.items()):
            wrong = trees.not_plain(tree)
            if wrong is not None:
                place, what = wrong
                raise UsageError(
                    f"State: of {name!r}, {place or 'it'} is {what}, which newcomers take by consent only: {CONSENT}"
                )

    def _divided(self) -> dict[str, DividedPart]:
        return {name: part for name, part in self._parts.items() if isinstance(part, DividedPart)}

    def _stands(self) -> dict[str, Stand]:
        """What this rank says of its divided objects."""
        versions = self._last.small.versions
        return {name: part.stand(versions[name]) for name, part in self._divided().items()}

    def _kept_parts(self) -> tuple[tuple[int, ...], int]:
        """See `sharded_part.kept`."""
        return sharded_part.kept(self._divided().values())

    def _guarded(self) -> list[Tensor]:
        return [tensor for part in self._parts.values() for tensor in part.capture()[1]]

    def _layout(self) -> dict[str, registered_objects.Layout]:
        """What the guarded tensors look like, per object."""
        return {name: part.layout() for name, part in self._parts.items()}

    def _intact(self) -> bool:
        """Whether the guarded tensors are those of the last commit, or can be put together as they were then."""
        last: Commit = self._last
        now = self._guarded()
        begun = {key: writes for part in self._divided().values() for key, writes in part.thing.begun().items()}
        return len(now) == len(last.guards) and all(
            tensor is guard and writes in (tensor._writes, begun.get(id(tensor)))
            for tensor, (guard, writes) in zip(now, last.guards, strict=True)
        )

    def _roll_back(self) -> bool:
        """Back to the last commit; False when that needs another rank's tensors. Before the first: nothing."""
        self.__dict__["_given"] = None  # and with it what its loader fetches ahead
        last: Commit | None = self._last
        if last is None:
            return True
        if self._snapshot:  # whatever was written, counted or not
            for (tensor, _), saved in zip(last.guards, last.copies, strict=True):
                tensor._array[...] = saved
                tensor._bump()
            tensors = iter([tensor for tensor, _ in last.guards])
            filled = {name: [next(tensors) for _ in range(count)] for name, count in last.counts.items()}
            self._settle(last.small, filled, "this rank committed")
            for each in self._divided().values():
                each.thing.mended()
            self._capture(last.small.versions)
            return True
        intact = self._intact()
        for name, part in self._parts.items():
            part.restore(last.small.parts[name])
        self._restore_rest(last.small)
        rng.set_rng_state(last.small.rng)
        if intact:  # else a source's state follows, and is checked
            self._check_taken(last.small, {}, "this rank committed")
        return intact

    def _accept(self, layout: Mapping[str, registered_objects.Layout]) -> dict[str, list[Tensor]]:
        """Per object, tensors to be filled from ranks whose guarded tensors look like `layout`."""
        if layout.keys() != self._parts.keys():
            raise StateError(
                f"State: the source registers the objects {sorted(layout)}, this rank {sorted(self._parts)}"
            )
        return {name: part.accept(layout[name]) for name, part in self._parts.items()}

    def _settle(self, small: Small, filled: dict[str, list[Tensor]], origin: str) -> None:
        """Become equal to the commit `small`; `filled` is what `_accept` returned, with its contents received.

        StateError when an object did not take its part over; `origin` says who the state is from.
        """
        for name, part in self._parts.items():
            part.settle(small.parts[name], filled[name])
        self._restore_rest(small)
        rng.set_rng_state(small.rng)
        self._check_taken(small, filled, origin)

    def _adopt_small(self, small: Small, origin: str) -> None:
        """Take another rank's small part; the guarded tensors are equal already, the random state stays."""
        for name, part in self._parts.items():
            part.restore(small.parts[name])
        self._restore_rest(small)
        self._check_taken(small, {}, origin)

    def _check_taken(self, small: Small, filled: dict[str, list[Tensor]], origin: str) -> None:
        """StateError when an object's state is not what it was just told to be."""
        for name, part in self._parts.items():
            tree, tensors = part.capture()
            wrong = trees.difference(small.parts[name], tree)
            if wrong is None and name in filled:
                wrong = trees.different_tensor(filled[name], tensors)
            if wrong is not None:
                raise StateError(
                    f"{name}: after load_state_dict() {wrong}: this is not the state of step {small.step} that "
                    f"{origin}; load_state_dict() must take over everything that state_dict() returns"
                )

    def _restore_rest(self, small: Small) -> None:
        self._plain.clear()
        self._plain.update(copy.deepcopy(small.plain))
        self.__dict__["_step"] = small.step
        self.__dict__["_generation"] = small.generation
        self.__dict__["_former"] = small.former

    def _joined(self, rank: int, world_size: int) -> None:
        """This rank is equal to all others: the commit that failures go back to."""
        self.__dict__["_settled"] = True
        for part in self._parts.values():
            part.drop_gradients()
        for sampler in self._samplers:
            sampler.bind(rank, world_size)
        self.__dict__["_given"] = None
        self._capture()

    def _give(self, step: StepPlan) -> None:
        self.__dict__["_given"] = step

    def _commit_left(self) -> None:
        """Commit the step that a loop of `elastic.steps` was left in after its update, if there is one."""
        step, self.__dict__["_given"] = self._given, None
        if step is not None and step.complete and self._applied():
            self.commit(step)

    def _applied(self) -> bool:
        """Whether an update was made since the last commit: of guarded tensors, or of divided state."""
        if self._last is None:
            return True
        versions = self._last.small.versions
        if any(part.thing.version() != versions[name] for name, part in self._divided().items()):
            return True
        now, guards = self._guarded(), self._last.guards
        return len(now) != len(guards) or any(
            tensor is not guard or tensor._writes != writes for tensor, (guard, writes) in zip(now, guards, strict=True)
        )

    def _begins(self) -> None:
        """This rank's state is equal to the others', and the function is about to be called. Collective."""
        self._due_work.enter(self, self.step)

    def _ends(self) -> None:
        """`elastic.run` is left."""
        self._due_work.leave()
        self._use_ledger(None)
        self.__dict__["_given"] = None

    def _use_ledger(self, book: Ledger | None) -> None:
        self.__dict__["_ledger"] = book


def _copied(tensor: Tensor, reusable: list[Any], index: int) -> Any:
    if index < len(reusable) and reusable[index].shape == tensor._array.shape:
        reusable[index][...] = tensor._array
        return reusable[index]
    return tensor._array.copy()
