"""Make messages of Python values: a pickle in which every tensor is a hole, and the blocks that tensors lie in.

Tensors of one message that share memory share a block, and share it again at the receiver. What is on its way in this
thread is in `now`: the classes of tensors and RRefs ask it when they are pickled.
"""

from __future__ import annotations

import copyreg
import io
import logging
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from resilin._base import log
from resilin.core import dtype as dtypes
from resilin.core.autograd.grad_mode import mode
from resilin.core.tensor import Parameter, Tensor, wrap
from resilin.errors import RpcError, UsageError
from resilin.rpc.autograd.contexts import DistAutogradContext
from resilin.rpc.channels.base import Block, Packed, TensorChannel
from resilin.rpc.channels.inline import InlineChannel
from resilin.rpc.channels.lent import LentChannel
from resilin.rpc.serialization import closures, tensors
from resilin.rpc.serialization.messages import BLOCKS, CLOSURE, GRADIENTS, RREFS, SMALL
from resilin.rpc.serialization.on_the_way import Incoming, Outgoing, Peer, now
from resilin.rpc.transports.base import Buffer

_LOG = log.logger("rpc.channels")
_PLAIN = frozenset({int, float, bool, str, bytes, type(None), complex})
_SMALL_BYTES = 8 << 10  # that a tensor reaches over which travels in the pickle: a table of blocks takes longer
Small = tuple[str, tuple[int, ...], bytes, bool, tensors.Layout | None]
"""A small tensor: its dtype and shape, the bytes it reaches over, whether it requires gradients, and how its elements
lie in these; None: as C-contiguous arrays do."""
_BESIDE_SMALL = frozenset({"lent"})  # channels that carry no memory as small as that


class _Kept:
    """What a channel may keep for a message until it is read."""

    __slots__ = ("_channel", "_packed", "_peer")

    def __init__(self, channel: TensorChannel, packed: Packed, peer: int) -> None:
        self._channel, self._packed, self._peer = channel, packed, peer

    def take_back(self) -> None:
        """Free it: the message is not sent."""
        self._channel.withdraw(self._packed, self._peer)


class Serializer:
    """Make and read the messages of one worker."""

    def __init__(self, channels: Sequence[TensorChannel], context: Any, allow_closures: bool) -> None:
        self._channels = {channel.name: channel for channel in channels}
        self._context = context
        self._allow_closures = allow_closures
        self._table: dict[type, Any] = {}
        first = next((each.name for each in channels if each.name not in _BESIDE_SMALL), "")
        self._takes_small = first == InlineChannel.name
        self._keeping = {each.name for each in channels if type(each).withdraw is not TensorChannel.withdraw}
        self._said: set[tuple[int, str, str]] = set()  # (peer, channel, device) that the log has
        self._known = -1  # entries that copyreg's table had when ours was made

    def described(self) -> dict[str, str]:
        """Return what the channels `describe`, by name, the preferred first."""
        return {name: channel.describe() for name, channel in self._channels.items()}

    def lends(self, theirs: Mapping[str, str]) -> bool:
        """Return whether memory of the host goes without a copy to a peer whose channels `describe` themselves so."""
        ours = self._channels.get(LentChannel.name)
        return ours is not None and ours.describe() == theirs.get(LentChannel.name) != ""

    def dump(
        self, thing: Any, peer: Peer, context: DistAutogradContext | None = None, place: bytes = b""
    ) -> tuple[int, bytes, list[Buffer], Sequence[Any]]:
        """Return flags, the pickle of `thing`, the parts of its blocks, and what to `take_back` when it is not sent.

        context: notes tensors that require gradients, as sent in the message at `place`.
        Raises what the parts of `thing` raise when they cannot be pickled.
        """
        outer, now.out = now.out, Outgoing(peer)
        out = now.out
        try:
            flags, data = self._pickled(thing, peer)
            if out.forks:
                flags |= RREFS
            parts: list[Buffer] = []
            if out.groups:
                flags |= BLOCKS
                parts = self._packed(out, peer)
            if context is not None and out.requiring and mode.grad:
                flags |= GRADIENTS
                out.forks.append(context.sent(place, peer.id, out.requiring))
        except BaseException:
            take_back(out.forks)
            raise
        finally:
            now.out = outer
        return flags, data, parts, out.forks

    def dump_small_call(self, args: tuple[Any, ...], kwargs: Any, peer: Peer) -> bytes | None:
        """Return the pickle of a call of plain arguments and one small tensor of the host; None for all others."""
        place = -1
        for number, argument in enumerate(args):
            if type(argument) not in _PLAIN:
                if place >= 0 or type(argument) is not Tensor:
                    return None
                place = number
        small = None if place < 0 or kwargs else self._small(args[place], peer)
        return None if small is None else pickle.dumps((*args[:place], small, *args[place + 1 :], place), 5)

    def dump_small(self, value: Any, peer: Peer, is_recorded: bool = True) -> bytes | None:
        """Return the pickle of one small tensor of the host; None for everything else.

        is_recorded: it may be part of a graph over several workers, and is not small where it requires gradients.
        """
        small = self._small(value, peer, is_recorded) if type(value) is Tensor else None
        return None if small is None else pickle.dumps((small, -1), 5)

    def dump_small_in(self, message: tuple[Any, ...], at: int, peer: Peer) -> bytes | None:
        """Return the pickle of a plain message with a list of small tensors of the host, or None, at place `at`; None
        for all others."""
        smalls: list[Any] = []
        for tensor in message[at] or ():
            small = None if tensor is None else self._small(tensor, peer)
            if small is None and tensor is not None:
                return None
            smalls.append(small)
        return pickle.dumps((*message[:at], smalls or None, *message[at + 1 :]), 5)

    def _small(self, tensor: Tensor, peer: Peer, is_recorded: bool = True) -> Small | None:
        array = tensor._array
        if (
            type(array) is not np.ndarray
            or not array.size
            or (is_recorded and tensor.requires_grad)
            or tensor._dev.type != "cpu"
            or getattr(tensor, "__dict__", None)
            or not self._takes_small
            or InlineChannel.name not in peer.channels
            or peer.device_for("cpu") is not None
        ):
            return None
        if array.flags.c_contiguous:
            data, layout = array.tobytes() if array.nbytes <= _SMALL_BYTES else None, None
        else:
            data, layout = tensors.small_extent(array, _SMALL_BYTES)
        if data is None:
            return None
        self._say(peer, InlineChannel.name, "cpu", "cpu")
        return dtypes.from_numpy(array.dtype).name, array.shape, data, tensor.requires_grad, layout

    def _pickled(self, thing: Any, peer: Peer) -> tuple[int, bytes]:
        if len(copyreg.dispatch_table) != self._known:
            self._known = len(copyreg.dispatch_table)
            self._table = {**copyreg.dispatch_table, Tensor: tensors.reduce_tensor, Parameter: tensors.reduce_tensor}
        file = io.BytesIO()
        pickler = pickle.Pickler(file, 5)
        pickler.dispatch_table = self._table
        try:
            pickler.dump(thing)
        except (AttributeError, pickle.PicklingError, TypeError) as error:
            if not closures.is_about_code(error):
                raise
            if not peer.allows_closures:
                raise RpcError(
                    f"{error}. Default RPC pickler does not serialize function code: define the function at the top of "
                    f"a module that both workers import, or start worker {peer.name!r} with "
                    "TensorPipeRpcBackendOptions(allow_closures=True)"
                ) from error
            out = now.out
            assert out is not None
            take_back(out.forks)
            out.__init__(peer)  # type: ignore[misc]
            return CLOSURE, closures.dumps(thing, self._table)
        return 0, file.getvalue()

    def _packed(self, out: Outgoing, peer: Peer) -> list[Buffer]:
        table: list[tuple[str, bytes, int, int]] = []
        parts: list[Buffer] = []
        for group in out.groups:
            block = Block(group.owner, group.start, group.stop - group.start, group.tensors, group.device, group.target)
            channel = self._choose(block, peer)
            packed = channel.pack(block, peer.id)
            if channel.name in self._keeping:
                out.forks.append(_Kept(channel, packed, peer.id))
            table.append((channel.name, packed.note, len(packed.parts), group.start))
            parts += packed.parts
        return [pickle.dumps(table, 5), *parts]

    def _choose(self, block: Block, peer: Peer) -> TensorChannel:
        for name, channel in self._channels.items():
            theirs = peer.channels.get(name)
            if theirs is not None and channel.reaches(block, theirs):
                self._say(peer, name, block.device, block.target)
                return channel
        raise UsageError(
            f"no tensor channel reaches worker {peer.name!r} from {block.device} to {block.target}: here there are "
            f"{', '.join(self._channels)}, there {', '.join(peer.channels)}"
        )

    def _say(self, peer: Peer, channel: str, device: str, target: str) -> None:
        """Log, once, which way tensors of a device go to a peer."""
        if (peer.id, channel, device) not in self._said:
            self._said.add((peer.id, channel, device))
            log.event(
                _LOG,
                logging.INFO,
                "tensors take a channel",
                peer=peer.name,
                channel=channel,
                device=device,
                target=target,
            )

    def load(
        self,
        flags: int,
        data: Buffer,
        parts: Sequence[Buffer],
        source: int,
        context: DistAutogradContext | None = None,
        place: bytes = b"",
    ) -> tuple[Any, Sequence[Any]]:
        """Return what `dump` took, and the RRefs in it. `parts`: the message's, from the first behind the pickle.

        context: notes tensors whose gradients go back, as received in the message at `place`.
        Raises what the classes of its parts raise.
        """
        if not flags & (BLOCKS | RREFS | CLOSURE | GRADIENTS):
            return _with_small(pickle.loads(data)) if flags & SMALL else pickle.loads(data), ()
        if flags & CLOSURE and not self._allow_closures:
            raise RpcError(
                "this worker takes no functions whose code is sent: it was started without "
                "TensorPipeRpcBackendOptions(allow_closures=True)"
            )
        outer, now.into = now.into, Incoming(source, self._context)
        into = now.into
        try:
            if flags & BLOCKS:
                at = 1
                failed: Exception | None = None
                for name, note, count, start in pickle.loads(parts[0]):
                    channel = self._channels.get(name)
                    if channel is None or at + count > len(parts):
                        raise RpcError(f"a block of tensors came through channel {name!r}, which is not here, or cut")
                    try:
                        into.blocks.append(channel.unpack(note, parts[at : at + count], source))
                    except Exception as error:  # noqa: BLE001 - the others are taken first: senders keep what they lend
                        failed = failed or error
                    into.starts.append(start)
                    at += count
                if failed is not None:
                    raise failed
            thing = pickle.loads(data)
        finally:
            now.into = outer
        if context is not None and flags & GRADIENTS:
            context.received(place, source, into.requiring)
        return thing, into.rrefs


def _with_small(thing: tuple[Any, ...]) -> Any:
    """What `dump_small_call` (then the arguments, and no keywords) or `dump_small` took."""
    *parts, place = thing
    made = _made_small(parts[place if place >= 0 else 0])
    if place < 0:
        return made
    parts[place] = made
    return tuple(parts), {}


def _made_small(small: Small) -> Tensor:
    name, shape, data, requires_grad, layout = small
    offset, strides = layout or (0, None)
    made = wrap(np.ndarray(shape, dtypes.by_name(name).np, bytearray(data), offset, strides))
    made._rg = requires_grad
    return made


def load_small_in(data: Buffer, at: int) -> tuple[Any, ...]:
    """Return the message that `dump_small_in` took."""
    message = list(pickle.loads(data))
    if message[at] is not None:
        message[at] = [None if small is None else _made_small(small) for small in message[at]]
    return tuple(message)


def dump_plain_call(args: Any, kwargs: Any) -> bytes | None:
    """Return the pickle of a call whose arguments are plain numbers and texts; None for all others."""
    if kwargs:
        return None
    for argument in args:
        if type(argument) not in _PLAIN:
            return None
    return pickle.dumps((args, kwargs), 5)


def dump_plain(value: Any) -> bytes | None:
    """Return the pickle of a plain number or text; None for all others."""
    return pickle.dumps(value, 5) if type(value) in _PLAIN else None


def take_back(forks: Sequence[Any]) -> None:
    """Undo what RRefs and channels have made for the receiver of a message that is not sent."""
    for fork in forks:
        fork.take_back()
