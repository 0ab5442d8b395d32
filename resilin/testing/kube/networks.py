"""Gives the pods of a test cluster addresses of their own, and cuts some off.

In network namespaces each pod is a host with a name, behind a switch that this process is at, too. Where these are not
permitted, pods are at addresses of loopback, and who is cut off is stopped instead.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from resilin.testing.hosts import NotPermitted

_COMMAND_TIMEOUT_S = 20
_MOST_HOSTS = 250
_numbers = itertools.count()  # of the networks that this process makes


@dataclass(frozen=True)
class PodPlace:
    """Where a pod is."""

    address: str
    enter: Sequence[str] = ()
    """Words before its command."""
    namespace: str = ""
    port: str = ""
    """Of the switch."""


class PodNetwork(Protocol):
    """What kubelets ask for. Only their thread does so."""

    has_names: bool
    """Whether names of Services are found by pods themselves, in their /etc/hosts."""

    def place(self, who: str, hostname: str) -> PodPlace:
        """Where `who` is from now on: another place for each."""
        ...

    def leave(self, place: PodPlace) -> None:
        """Nobody is there any more."""

    def cut(self, place: PodPlace, pid: int) -> None:
        """Nothing gets to a pod or comes from it. pid: of its first process."""

    def restore(self, place: PodPlace, pid: int) -> None:
        """End what `cut` did."""

    def set_names(self, names: Mapping[str, str]) -> None:
        """Let all pods know the addresses of these names."""

    def close(self) -> None:
        """Remove what is left."""


def open_network(folder: Path) -> PodNetwork:
    """The better one of those that this machine permits."""
    with contextlib.suppress(NotPermitted):
        return NamespaceNetwork(folder)
    return LoopbackNetwork()


@dataclass
class LoopbackNetwork:
    """Addresses in 127.0.0.0/8."""

    has_names: bool = False
    _addresses: dict[str, str] = field(default_factory=dict)

    def place(self, who: str, hostname: str) -> PodPlace:
        """An address; the same one if it is asked for again."""
        number = len(self._addresses) + 1
        assert number < _MOST_HOSTS, f"expected fewer than {_MOST_HOSTS} pods and Services in one test"
        own = os.getpid()  # other processes of this machine may run clusters at the same time
        return PodPlace(self._addresses.setdefault(who, f"127.{64 + own // 256 % 128}.{own % 256}.{number}"))

    def leave(self, place: PodPlace) -> None:
        """Addresses are kept: a Service's is its next pod's, too."""

    def cut(self, place: PodPlace, pid: int) -> None:
        """Stop all processes of the pod."""
        for each in _family(pid):
            _signal(each, signal.SIGSTOP)

    def restore(self, place: PodPlace, pid: int) -> None:
        """Let them go on."""
        for each in _family(pid):
            _signal(each, signal.SIGCONT)

    def set_names(self, names: Mapping[str, str]) -> None:
        """Names are translated before pods see them."""

    def close(self) -> None:
        """Nothing was made."""


class NamespaceNetwork:
    """A switch in a namespace of its own, pods in others, and this process at one of its ports."""

    has_names = True

    def __init__(self, folder: Path) -> None:
        """NotPermitted: this user may not make namespaces."""
        own, number = os.getpid(), next(_numbers)
        self._name = f"rk{own}n{number}"
        self._net = f"100.{64 + own // 256 % 64}.{own % 256}"  # addresses that are shared behind providers' gateways
        self._hosts = folder / "hosts"
        self._count = 0
        self._made: list[str] = []
        self._uplink = f"rk{own}u{number}"
        self._hosts.write_text("127.0.0.1 localhost\n")
        try:
            self._add(self._name)
            _ip("link", "add", self._uplink, "type", "veth", "peer", "name", "uplink", "netns", self._name)
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            self.close()
            raise NotPermitted(str(getattr(error, "stderr", error) or error).strip()) from error
        _ip("-n", self._name, "link", "add", "switch", "type", "bridge")
        for link in ("switch", "uplink"):
            _ip("-n", self._name, "link", "set", link, *(("master", "switch") if link == "uplink" else ()), "up")
        _ip("addr", "add", f"{self._net}.254/24", "dev", self._uplink)
        _ip("link", "set", self._uplink, "up")

    def _add(self, name: str) -> None:
        _ip("netns", "add", name)
        self._made.append(name)

    def place(self, who: str, hostname: str) -> PodPlace:
        """A namespace with an address, a name of its own and all other pods' names."""
        self._count += 1
        number = self._count
        assert number < _MOST_HOSTS, f"expected fewer than {_MOST_HOSTS} pods in one test"
        name, port, address = f"{self._name}p{number}", f"port{number}", f"{self._net}.{number}"
        self._add(name)
        link = f"link add eth0 netns {name} type veth peer name {port}"
        _ip("-n", self._name, "-batch", "-", text=f"{link}\nlink set {port} master switch up\n")
        own_side = f"addr add {address}/24 dev eth0\nlink set lo up\nlink set eth0 up\n"
        _ip("-n", name, "-batch", "-", text=own_side)
        script = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'
        enter = ("ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", script, hostname, str(self._hosts))
        return PodPlace(address, enter, name, port)

    def leave(self, place: PodPlace) -> None:
        """Remove its namespace."""
        if place.namespace in self._made:
            self._made.remove(place.namespace)
            _ip("netns", "del", place.namespace)

    def cut(self, place: PodPlace, pid: int) -> None:
        """Take its port of the switch down."""
        _ip("-n", self._name, "link", "set", place.port, "down")

    def restore(self, place: PodPlace, pid: int) -> None:
        """Take it up again."""
        _ip("-n", self._name, "link", "set", place.port, "up")

    def set_names(self, names: Mapping[str, str]) -> None:
        """Write the file that all pods have as /etc/hosts: in place, for it is mounted."""
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in sorted(names.items()))]
        text = "".join(f"{line}\n" for line in lines)
        if self._hosts.read_text() != text:
            self._hosts.write_text(text)

    def close(self) -> None:
        """Remove all namespaces; the links go with them."""
        for name in reversed(self._made):
            _ip("netns", "del", name)
        self._made.clear()


def _family(pid: int) -> Iterator[int]:
    """A process and all that come from it, as far as their parents live."""
    yield pid
    with contextlib.suppress(OSError):  # it has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _family(int(child))


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _ip(*words: str, text: str = "") -> None:
    """Run `ip`; text: its commands, each a line, where `words` end with `-batch -`."""
    subprocess.run(["ip", *words], input=text, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=True)
