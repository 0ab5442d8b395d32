"""Several hosts on one machine: network namespaces, two joined by a veth pair or any number by a switch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

_COMMAND_TIMEOUT_S = 10
_NOBODY = "02:00:00:00:00:00"  # an address of the link layer that no host has
_numbers = count()  # of the pairs that this process makes: names and addresses must differ


class NotPermitted(Exception):
    """This machine does not let this user make network namespaces; says what it answered."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """One host's end of a link."""

    device: str
    """The interface's name; also the namespace's for the first link."""
    address: str
    address6: str
    """A global one; the kernel gives another, of the link."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """One of them."""

    name: str
    """Of its namespace."""
    links: tuple[Link, ...]

    @property
    def address(self) -> str:
        """On the first link."""
        return self.links[0].address

    @property
    def enter(self) -> list[str]:
        """Words that run the command after them on this host."""
        return ["ip", "netns", "exec", self.name]

    def ip(self, *words: str) -> None:
        """Run `ip` on this host. CalledProcessError shows what it answered."""
        _ip("-n", self.name, *words)

    def cut(self, link: int = 0) -> None:
        """Take a link down."""
        self.ip("link", "set", self.links[link].device, "down")

    def cut_from(self, other: Host) -> None:
        """From now on nothing gets to `other` or comes from it, on a switch: packets go nowhere, and nobody says so."""
        for one, two in ((self, other), (other, self)):
            for address in (two.links[0].address, two.links[0].address6):
                one.ip("neigh", "replace", address, "lladdr", _NOBODY, "dev", one.links[0].device, "nud", "permanent")

    def meets(self, other: Host) -> None:
        """End what `cut_from` did."""
        for one, two in ((self, other), (other, self)):
            for address in (two.links[0].address, two.links[0].address6):
                one.ip("neigh", "del", address, "dev", one.links[0].device)

    def restore(self, link: int = 0) -> None:
        """Take it up again; its IPv6 addresses are gone."""
        self.ip("link", "set", self.links[link].device, "up")


@contextmanager
def two_hosts(links: int = 1) -> Iterator[Sequence[Host]]:
    """Two hosts that reach each other over `links` links and nothing else, until the block ends.

    NotPermitted: needs CAP_SYS_ADMIN.
    """
    number = next(_numbers)
    hosts = [_host(number, at, side, links) for at, side in ((1, "a"), (2, "b"))]
    made = []
    try:
        try:
            for host in hosts:
                _ip("netns", "add", host.name)
                made.append(host)
            for one, two in zip(*(host.links for host in hosts), strict=True):
                pair = ("link", "add", one.device, "netns", hosts[0].name, "type", "veth", "peer", "name", two.device)
                _ip(*pair, "netns", hosts[1].name)
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            raise NotPermitted(str(getattr(error, "stderr", error) or error).strip()) from error
        for host in hosts:
            host.ip("link", "set", "lo", "up")
            for link in host.links:
                _bring_up(host, link)
        yield hosts
    finally:
        for host in made:
            _ip("netns", "del", host.name)


@contextmanager
def switched_hosts(count: int) -> Iterator[Sequence[Host]]:
    """That many hosts which reach one another through a switch and nothing else, until the block ends.

    NotPermitted: needs CAP_SYS_ADMIN.
    """
    number = next(_numbers)
    hosts = [_host(number, at + 1, chr(ord("a") + at), 1) for at in range(count)]
    switch = f"rs{os.getpid()}s{number}"
    made = []
    try:
        try:
            for name in (switch, *(host.name for host in hosts)):
                _ip("netns", "add", name)
                made.append(name)
            _ip("-n", switch, "link", "add", "switch", "type", "bridge")
            _ip("-n", switch, "link", "set", "switch", "up")
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            raise NotPermitted(str(getattr(error, "stderr", error) or error).strip()) from error
        for port, host in enumerate(hosts):
            link = host.links[0]
            pair = ("link", "add", link.device, "netns", host.name, "type", "veth", "peer", "name", f"port{port}")
            _ip(*pair, "netns", switch)
            _ip("-n", switch, "link", "set", f"port{port}", "master", "switch", "up")
            host.ip("link", "set", "lo", "up")
            _bring_up(host, link)
        yield hosts
    finally:
        for name in made:
            _ip("netns", "del", name)


def _bring_up(host: Host, link: Link) -> None:
    host.ip("addr", "add", f"{link.address}/24", "dev", link.device)
    host.ip("addr", "add", f"{link.address6}/64", "dev", link.device, "nodad")
    host.ip("link", "set", link.device, "up")


def _host(number: int, at: int, side: str, links: int) -> Host:
    low, high = os.getpid() % 250 + 1, number % 250 + 1
    name = f"rs{os.getpid()}{side}{number}"
    ends = [
        Link(
            device=name if i == 0 else f"{name}x{i}",
            address=f"{10 + i}.{low}.{high}.{at}",
            address6=f"fd00:{i}:{low}:{high}::{at}",
        )
        for i in range(links)
    ]
    return Host(name=name, links=tuple(ends))


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=True)
