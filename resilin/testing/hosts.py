"""Two hosts on one machine: network namespaces joined by a veth pair."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

_COMMAND_TIMEOUT_S = 10
_numbers = count()  # of the pairs that this process makes: names and addresses must differ


class NotPermitted(Exception):
    """This machine does not let this user make network namespaces; says what it answered."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """One of the two."""

    name: str
    """Of its namespace, and of its end of the link."""
    address: str

    @property
    def enter(self) -> list[str]:
        """Words that run the command after them on this host."""
        return ["ip", "netns", "exec", self.name]

    def ip(self, *words: str) -> None:
        """Run `ip` on this host. CalledProcessError shows what it answered."""
        _ip("-n", self.name, *words)

    def cut(self) -> None:
        """Take the link down."""
        self.ip("link", "set", self.name, "down")


@contextmanager
def two_hosts() -> Iterator[Sequence[Host]]:
    """Two hosts that reach each other and nothing else, until the block ends. NotPermitted: needs CAP_SYS_ADMIN."""
    number = next(_numbers)
    net = f"10.{os.getpid() % 250 + 1}.{number % 250 + 1}"
    hosts = [Host(name=f"rs{os.getpid()}{side}{number}", address=f"{net}.{at}") for at, side in ((1, "a"), (2, "b"))]
    one, two = hosts
    made = []
    try:
        try:
            for host in hosts:
                _ip("netns", "add", host.name)
                made.append(host)
            link = ("link", "add", one.name, "netns", one.name, "type", "veth", "peer", "name", two.name)
            _ip(*link, "netns", two.name)
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            raise NotPermitted(str(getattr(error, "stderr", error) or error).strip()) from error
        for host in hosts:
            host.ip("addr", "add", f"{host.address}/24", "dev", host.name)
            host.ip("link", "set", host.name, "up")
            host.ip("link", "set", "lo", "up")
        yield hosts
    finally:
        for host in made:
            _ip("netns", "del", host.name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=True)
