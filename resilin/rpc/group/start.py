"""Make the agent of a worker: its queues, transports and channels, and its place in the group."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial

import resilin.nn  # noqa: F401 - modules arrive in worker threads while the program imports it: half of it, then
from resilin._base import env, log
from resilin._base import secret as job_secret
from resilin._base.clock import Deadline, spell
from resilin.distributed.stores import Store
from resilin.errors import PeerLost, UsageError
from resilin.rpc import current
from resilin.rpc.agent.agent import Agent
from resilin.rpc.channels.base import Post, TensorChannel
from resilin.rpc.channels.cuda_ipc import CudaIpcChannel
from resilin.rpc.channels.inline import InlineChannel
from resilin.rpc.channels.lent import LentChannel
from resilin.rpc.channels.staged import StagedChannel
from resilin.rpc.channels.striped import StripedChannel
from resilin.rpc.constants import MEET_S
from resilin.rpc.group.gather import gatherings
from resilin.rpc.membership import device_maps
from resilin.rpc.membership.membership import Membership, WorkerRecord
from resilin.rpc.options import TensorPipeRpcBackendOptions
from resilin.rpc.published import api as published
from resilin.rpc.transports import choose
from resilin.rpc.transports.base import Queues, Transport, WorkerIdentity
from resilin.rpc.waits import debug_server
from resilin.rpc.worker_info import WorkerInfo

_LOG = log.logger("rpc.start")
CHANNELS: dict[str, Callable[[Post], TensorChannel]] = {
    each.name: each for each in (LentChannel, InlineChannel, CudaIpcChannel, StripedChannel, StagedChannel)
}
"""Tensor channels by name, the preferred first."""
Wrap = Callable[[Transport], Transport]
wrappers: list[Wrap] = []
"""What every new transport is put into: for plans of faults in tests."""


def start(store: Store, name: str, rank: int, world_size: int | None, options: TensorPipeRpcBackendOptions) -> Agent:
    """Return the agent of worker `name`, which has joined its group and serves. It is the current one."""
    info = WorkerInfo(name, rank)
    membership = Membership(store, name, rank, world_size)
    agents: list[Agent] = []
    undo = contextlib.ExitStack()

    def lost(peer: int, error: PeerLost) -> None:
        for agent in agents:
            agent.peers.lost(peer, error)

    with undo:
        queues = choose.make_queues()
        undo.callback(queues.close)
        identity = WorkerIdentity(
            rank,
            name,
            membership.group,
            job_secret.from_environment() or "",
            env.get("RESILIN_HOST") or "127.0.0.1",
            options.max_message_bytes,
        )
        made = _transports(identity, queues, lost, options)
        for transport in made:
            undo.callback(transport.close)
        channels = _channels(options.channels, agents)
        for channel in channels:
            undo.callback(channel.close)
        named = [str(device) for each in options.device_maps.values() for device in each] + [*map(str, options.devices)]
        member = WorkerRecord(
            id=rank,
            name=name,
            addresses={each.name: each.address for each in made},
            channels={each.name: each.describe() for each in channels},
            incarnation=os.urandom(8).hex(),
            allows_closures=options.allow_closures,
            device_maps={to: {str(a): str(b) for a, b in each.items()} for to, each in options.device_maps.items()},
            devices=tuple(map(str, options.devices)),
            device_counts=device_maps.counts(named),
            max_message_bytes=options.max_message_bytes,
            at=identity.host,
            turn=membership.turn(),
        )
        agent = Agent(
            member,
            membership,
            queues,
            channels,
            options.rpc_timeout,
            options.num_worker_threads,
            options.max_pending_calls,
        )
        undo.pop_all()
    limit = options.rpc_timeout or MEET_S
    agents.append(agent)
    agent.when_lost.append(lambda peer, error: gatherings.lost(agent.peers.name_of(peer), name, error))
    agent.peers.use(made)
    published.install(agent)
    debug_server.install(agent)
    current.agent = agent
    try:
        before = membership.record(member.id) if member.turn else None
        if before is not None:
            agent.peers.replaced(before)
        check = partial(device_maps.check, is_static=membership.is_static)
        members = membership.join(member, check)
        try:
            check(members)
            device_maps.check_targets(member, members)
        except UsageError:
            membership.leave(Deadline(limit))
            raise
        agent.peers.take(members)
        gatherings.reset()
        agent.start(made)  # not before: calls may have come already, of workers that it does not know before
        if not membership.is_static:
            _greet(agent, member, limit)
    except BaseException:
        current.agent = None
        agent.close()
        for each in made:
            each.close()
        raise
    current.at_end.append(agent.peers.close)
    log.event(_LOG, logging.INFO, "RPC is ready", worker=str(info), transports=[each.name for each in made])
    return agent


def _greet(agent: Agent, member: WorkerRecord, limit_s: float) -> None:
    """Tell the others that a worker has come. Whoever does not answer finds it in the store, when it is called."""
    silent = agent.tell_member(member, joins=True, deadline=Deadline(limit_s))
    if silent:
        what = "workers have not answered a newcomer"
        log.event(_LOG, logging.WARNING, what, worker=str(agent.me), silent=silent, within=spell(limit_s))


def _transports(
    identity: WorkerIdentity,
    queues: Queues,
    lost: Callable[[int, PeerLost], None],
    options: TensorPipeRpcBackendOptions,
) -> list[Transport]:
    made: list[Transport] = []
    try:
        for kind in choose.chosen(options.transports, options.encrypt, options.tls, options.num_lanes):
            transport: Transport = kind(identity, queues, lost)
            for wrap in wrappers:
                transport = wrap(transport)
            made.append(transport)
    except BaseException:
        for each in made:
            each.close()
        raise
    return made


def _channels(wanted: Sequence[str] | None, agents: list[Agent]) -> list[TensorChannel]:
    for name in wanted or ():
        if name not in CHANNELS:
            raise UsageError(
                f"TensorPipeRpcBackendOptions(channels=...): there is no {name!r} here; there are {', '.join(CHANNELS)}"
            )

    def post(name: str, peer: int, note: bytes) -> None:
        for agent in agents:
            agent.post(name, peer, note)

    return [CHANNELS[name](partial(post, name)) for name in (CHANNELS if wanted is None else wanted)]
