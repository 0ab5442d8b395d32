"""Processes that may be ranks of one group after another, as threads; and what their groups are asked."""

import threading

import numpy as np

import resilin
from resilin import distributed as dist
from resilin._base.threads import OwnedThread
from resilin.core.machine import memory
from resilin.distributed.group.process_group import connect
from resilin.distributed.wire import shard_tree
from resilin.errors import (
    DistError,
)
from resilin.testing.job_secret import SECRET
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import listener


class Company:
    """Processes that may be ranks, as threads: each has a listener of its own."""

    def __init__(self, transport, count, limit=3 * PATIENCE_S):
        self.listeners = [listener(transport, number) for number in range(count)]
        self.endpoints = [each.describe() for each in self.listeners]
        self.met = threading.Barrier(count)
        self.limit = limit
        self.groups = []

    def join(self, number, members, generation=1, secret=SECRET):
        """Connect as a newcomer."""
        mine, names = members.index(number), self.names(members)
        group = connect(
            self.listeners[number],
            names,
            mine,
            group_name="world",
            generation=generation,
            secret=secret,
            timeout_s=self.limit,
        )
        self.groups.append(group)
        return group

    def names(self, members):
        return [self.endpoints[number] for number in members]

    def play(self, *parts):
        """Run each part in a thread of its own; their results, or the first error."""
        outcome, errors = {}, []

        def run(number, part):
            memory.install()
            try:
                outcome[number] = part(number)
            except BaseException as error:
                errors.append(error)
                raise

        threads = [OwnedThread(f"number-{n}", lambda n=n, p=p: run(n, p)) for n, p in enumerate(parts)]
        for thread in threads:
            try:
                thread.join(2 * PATIENCE_S)
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
        if errors:
            self.met.abort()
            raise errors[0]
        return [outcome[number] for number in range(len(parts))]

    def close(self):
        for each in [*self.groups, *self.listeners]:
            each.close()


def total(group, count=100_000, like=resilin.ones):
    """What an all_reduce of rank + 1 gives; checks all of it."""
    with dist.use_group(group):
        tensor = like(count) * (group.rank() + 1)
        dist.all_reduce(tensor)
        values = np.asarray(tensor)
        assert (values == values[0]).all()
        return float(values[0])


def expected(size):
    return float(sum(range(1, size + 1)))


def along_tree(group, shards=8):
    """The bits of a canonical sum of fixed shards, whoever holds them."""
    plan = shard_tree.Plan(shards, group.size())
    data = [np.random.default_rng(n).normal(size=5000).astype(np.float32) for n in range(shards)]

    def value(node):
        children = node.children()
        return data[node.start].copy() if children is None else value(children[0]) + value(children[1])

    out = np.empty(5000, np.float32)
    with dist.use_group(group):
        dist.tree_all_reduce({node: value(node) for node in plan.subtrees(group.rank())}, out, plan)
    return out.tobytes()


def channels(transport):
    return 1 if transport == "shm" else 2


def end_of(group, call=lambda: dist.all_reduce(resilin.ones(1000))):
    """The error that ends the group, sooner or later."""
    with dist.use_group(group):
        while True:
            try:
                call()
            except DistError as error:
                return error
