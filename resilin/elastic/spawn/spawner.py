"""Start the workers from a small process, which hears first of their death, and outlives the agent only to kill them.

Forked from the launcher before that has a thread, or run with `python -I -S`; it imports little (each millisecond of
its start is one of the job's) and has one thread, so `fork` is safe here while it would not be in the agent (gRPC,
store threads).

Rules:
  - Each worker leads its own session, and dies with this process (PR_SET_PDEATHSIG).
  - This process is a subreaper: whatever a worker leaves behind, daemons included, becomes its child.
  - When the agent's socket closes, every descendant is killed and the given folders are removed.
  - Workers of programs that import resilin are forked from a template (`fork_server.py`), which has done the slow
    imports; they become children of this process before they run. Without a template, or should it fail, they are
    executed.
  - A template that does not answer (it was stopped, say) is killed and replaced; workers do not wait for the new one.
  - Should this process be killed, the launcher, a subreaper too, inherits what workers left behind and kills it.
  - Signals of the terminal that were ignored when this process started (nohup) are ignored in the workers, too.

The socket is SOCK_SEQPACKET, one JSON object per packet, with the number of its descriptors as "fds":
    agent -> here  {"op": "spawn", "id": n, "streams": "oe", "warm": bool}
                       + descriptors [request file, control, stdout?, stderr?]
                   {"op": "prepare"} + [request file]       start the template, unless there is one
                   {"op": "signal", "id": n, "signal": s}   SIGKILL: its whole process group
                   {"op": "retire"}                         end the template
                   {"op": "purge"}                          kill whatever earlier workers left behind
                   {"op": "own", "folder": path}            remove that folder at the end
    here -> agent  {"op": "spawned", "id": n, "pid": p} | {"op": "refused", "id": n, "errno": e, "text": t}
                   {"op": "exited", "id": n, "code": c}     c >= 0: exit status; c < 0: killed by signal -c
                   {"op": "mute", "text": t}                a template was killed
    here -> template  the packet of a "spawn" + [go, request file, control, stdout?, stderr?]
    template -> here  {"id": n, "pid": p}                   0: it could not fork. The worker runs when "go" says so
A request file (a memfd, so its size is free) holds {"argv": [...], "env": {...}, "cwd": str|null, "program": [...],
"module": bool}: a whole command, and what of it a template runs.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import time

from resilin._base import parent_death
from resilin.elastic.spawn import processes

TYPE_CHECKING = False  # `typing` itself would cost 5 ms
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

ENV_FD = "RESILIN_CONTROL_FD"  # names the descriptor a worker talks to its agent through
NAME = "resilin-spawner"  # in lists of processes
MAX_PACKET_BYTES = 64 << 10
_MAX_FDS = 8
LOOK_S = 1.0  # a template that has been silent for so long is looked at
IMPORTS_S, ANSWER_S = 60.0, 10.0  # before its first answer it imports; then it forks, which takes milliseconds
MOST_REPLACED = 3
_TERMINAL = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # a terminal sends these
_IGNORED = (*_TERMINAL, signal.SIGTERM, signal.SIGPIPE)


class Copied(BaseException):
    """Raised in a copy of this process, so that nothing of what this process was at is left on its stack.

    Whoever is at the stack's bottom carries out `request`, as the process at the other end of `control_fd`.
    """

    def __init__(self, request: dict[str, Any], control_fd: int) -> None:
        super().__init__()
        self.request, self.control_fd = request, control_fd


class Template:
    """The process that workers are forked from, and what it has been asked for. `socket` is closed when it is gone.

    request_fd: what it was started with, to start another one.
    """

    def __init__(self, pid: int, sock: socket.socket, request_fd: int) -> None:
        self.pid = pid
        self.socket = sock
        self.request_fd = request_fd
        self.asked: dict[int, tuple[dict[str, Any], list[int], int]] = {}  # worker id -> packet, descriptors, go
        self.since = 0.0  # monotonic: it has had something to do, and has not answered
        self.limit_s = IMPORTS_S

    def heard(self) -> None:
        """It has answered."""
        self.since, self.limit_s = time.monotonic(), ANSWER_S

    def fault(self) -> str:
        """Why it cannot be waited for any longer; empty: it can."""
        waited_s = time.monotonic() - self.since
        if not self.asked or waited_s < LOOK_S:
            return ""
        if processes.stat(self.pid)[:1] == ["T"]:
            return "is stopped (SIGSTOP)"
        return f"has not answered for {waited_s:.0f} s" if waited_s > self.limit_s else ""

    def ask(self, message: dict[str, Any], fds: list[int]) -> bool:
        """Ask for a worker: return whether it could be asked; it then owns the descriptors."""
        try:
            waits, go = os.pipe2(os.O_CLOEXEC)
        except OSError:  # no descriptor is left: it is executed, which takes fewer
            return False
        try:
            socket.send_fds(self.socket, [json.dumps(message).encode()], [waits, *fds], socket.MSG_DONTWAIT)
        except OSError:  # it is gone, or reads nothing
            os.close(go)
            return False
        finally:
            os.close(waits)
        if not self.asked:
            self.since = time.monotonic()
        self.asked[message["id"]] = message, fds, go
        return True

    def forget(self, worker_id: int, word: bytes = b"") -> None:
        """The matter is settled: its process runs when `word` is "g", and ends otherwise."""
        _, fds, go = self.asked.pop(worker_id)
        with contextlib.suppress(BrokenPipeError):
            os.write(go, word)
        for fd in (go, *fds):
            os.close(fd)


class Spawner:
    """The loop. `agent` is the socket to the agent, workers ignore the signals in `ignored`.

    copies: the template begins as a copy of this process, and in it `Copied` is raised.
    """

    def __init__(self, agent: socket.socket, ignored: Collection[int] = (), *, copies: bool = False) -> None:
        self._agent = agent
        self._copies = copies
        self._folders: list[str] = []
        self._defaults = {signal.SIGCHLD, *_IGNORED, signal.SIGXFSZ}.difference(ignored)  # in workers
        self._ids: dict[int, int] = {}  # pid -> worker id, of workers not reaped yet
        self._template: Template | None = None
        self._replaced = 0
        self._poll = select.poll()
        self._own = os.getpid()
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve the agent until it closes its end, then leave nobody behind."""
        self._poll.register(self._agent, select.POLLIN)
        self._poll.register(self._wake_r, select.POLLIN)
        serving = True
        while serving:
            waits = self._template is not None and self._template.asked
            ready = {fd for fd, _ in self._poll.poll(LOOK_S * 1000 if waits else None)}
            if self._wake_r in ready:
                os.read(self._wake_r, 4096)
            self._reap()
            if self._template is not None and self._template.socket.fileno() in ready:
                self._hear(self._template)
            if self._template is not None and (fault := self._template.fault()):
                self._replace(self._template, fault)
            if self._agent.fileno() in ready:
                serving = self._serve_one()
        processes.sweep(self._rest)
        for folder in self._folders:
            processes.remove(folder)

    def _serve_one(self) -> bool:
        try:
            packet, fds = receive(self._agent)
        except OSError:
            return False
        if not packet:
            return False
        message = json.loads(packet)
        if len(fds) < message.get("fds", 0):  # the kernel keeps those for which this process has no room
            self._lack(message, fds)
        elif message["op"] == "spawn":
            if not (message["warm"] and self._template is not None and self._template.ask(message, fds)):
                self._spawn(message, fds)
        elif message["op"] == "prepare":
            self._prepare(fds)
        elif message["op"] == "retire":
            self._end_template()
        elif message["op"] == "signal":
            self._signal(message["id"], message["signal"])
        elif message["op"] == "own":
            self._folders.append(message["folder"])
        elif message["op"] == "purge" and not self._ids and (self._template is None or not self._template.asked):
            processes.sweep(self._rest, [self._template.pid] if self._template is not None else [])
        return True

    def _lack(self, message: dict[str, Any], fds: list[int]) -> None:
        """Without a descriptor left, a worker is refused; a template is not prepared, and workers are executed."""
        for fd in fds:
            os.close(fd)
        if message["op"] == "spawn":
            self._tell(op="refused", id=message["id"], errno=errno.EMFILE, text=os.strerror(errno.EMFILE))

    def _tell(self, **message: object) -> None:
        with contextlib.suppress(OSError):  # the agent is gone: the next poll ends the loop
            self._agent.send(json.dumps(message).encode())

    # ------------------------------------------------------------------------------------ starting

    def _spawn(self, message: dict[str, Any], fds: list[int]) -> None:
        request_fd, control_fd, *streams = fds
        try:
            pid = self._execute(request_fd, control_fd, dict(zip(message["streams"], streams, strict=True)))
        except OSError as error:
            self._tell(op="refused", id=message["id"], errno=error.errno, text=error.strerror)
        else:
            self._started(message["id"], pid)
        finally:
            for fd in fds:
                os.close(fd)

    def _started(self, worker_id: int, pid: int) -> None:
        self._ids[pid] = worker_id
        self._tell(op="spawned", id=worker_id, pid=pid)

    def _execute(self, request_fd: int, control_fd: int, streams: dict[str, int]) -> int:
        """The number of a new process. OSError: why its command cannot be executed."""
        request = _read(request_fd)
        request["env"][ENV_FD] = str(control_fd)
        report_r, report_w = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            self._become(request, control_fd, streams, report_w)
        os.close(report_w)
        problem = os.read(report_r, 4096)  # end of file as soon as exec succeeded
        os.close(report_r)
        if problem:
            os.waitpid(pid, 0)
            number, _, text = problem.decode().partition(" ")
            raise OSError(int(number), text)
        return pid

    def _prepare(self, fds: list[int]) -> None:
        if self._template is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs, contextlib.suppress(OSError):  # workers have the same interpreter, and say why it cannot run
                try:
                    request, socket_fd = fds[0], theirs.fileno()
                    pid = self._copy(request, socket_fd) if self._copies else self._execute(request, socket_fd, {})
                    self._template = Template(pid, ours, os.dup(request))
                    self._poll.register(ours, select.POLLIN)
                except Copied:
                    ours.close()
                    raise
        for fd in fds:
            os.close(fd)

    def _copy(self, request_fd: int, control_fd: int) -> int:
        """The number of a new process, a copy of this one, in which `Copied` is raised."""
        request, mine = _read(request_fd), os.dup(control_fd)  # the other one's owner closes it
        pid = os.fork()
        if pid == 0:
            self._settle()
            processes.name_itself(os.path.basename(request["argv"][0]))
            for descriptor in (request_fd, self._wake_r, self._wake_w):  # sockets have owners on the stack
                os.close(descriptor)
            raise Copied(request, mine)
        os.close(mine)
        return pid

    def _hear(self, template: Template) -> None:
        """What a template has to say of a worker; its end, after which workers are executed."""
        packet = b""
        with contextlib.suppress(OSError):
            packet = template.socket.recv(MAX_PACKET_BYTES)
        if not packet:
            self._end_template()
            return
        template.heard()
        answer = json.loads(packet)
        if answer["id"] not in template.asked:
            return  # it was to be killed meanwhile, and ends by itself
        if answer["pid"]:
            self._started(answer["id"], answer["pid"])
            template.forget(answer["id"], b"g")
        else:
            self._spawn_after_all(template, answer["id"])

    def _end_template(self) -> None:
        """It ends when its socket is closed, if it has not ended; workers that it has not begun are executed."""
        template, self._template = self._template, None
        if template is not None:
            self._poll.unregister(template.socket)
            template.socket.close()
            os.close(template.request_fd)
            for worker_id in list(template.asked):
                self._spawn_after_all(template, worker_id)

    def _replace(self, template: Template, fault: str) -> None:
        """End a template that `fault` is found with; its workers are executed, and another one is made ready."""
        os.kill(template.pid, signal.SIGKILL)
        kept, waiting = os.dup(template.request_fd), len(template.asked)
        self._end_template()
        self._replaced += 1
        again = self._replaced <= MOST_REPLACED
        text = f"(pid {template.pid}) {fault}: it is killed{' and replaced' if again else ''}, and {waiting} "
        self._tell(op="mute", text=f"{text}worker{'s start' if waiting > 1 else ' starts'} without it")
        if again:
            self._prepare([kept])
        else:
            os.close(kept)

    def _spawn_after_all(self, template: Template, worker_id: int) -> None:
        message, fds, _ = template.asked[worker_id]
        kept = [os.dup(fd) for fd in fds]
        template.forget(worker_id)
        self._spawn(message, kept)

    def _become(self, request: dict[str, Any], control_fd: int, streams: dict[str, int], report_w: int) -> None:
        """In the child: turn into the worker. Never returns."""
        try:
            self._settle()
            os.set_inheritable(control_fd, True)
            for name, target in (("o", 1), ("e", 2)):
                if name in streams:
                    os.dup2(streams[name], target)
            if request.get("cwd"):
                os.chdir(request["cwd"])
            os.execvpe(request["argv"][0], request["argv"], request["env"])
        except OSError as error:
            os.write(report_w, f"{error.errno} {error.strerror}".encode())
        finally:
            os._exit(127)

    def _settle(self) -> None:
        """In a child: what it inherits of a process that starts others is undone; it leads a session of its own."""
        signal.set_wakeup_fd(-1)
        for number in self._defaults:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.setsid()
        parent_death.die_with(self._own)

    # -------------------------------------------------------------------------------------- ending

    def _signal(self, worker_id: int, number: int) -> None:
        # SIGTERM to the whole group would take a data loader's children away from a worker that is saving its work
        if self._template is not None and worker_id in self._template.asked:  # it dies before it has begun
            self._template.forget(worker_id)
            self._tell(op="exited", id=worker_id, code=-number)
            return
        send = os.killpg if number == signal.SIGKILL else os.kill
        for pid, known in self._ids.items():
            if known == worker_id:
                with contextlib.suppress(ProcessLookupError):
                    send(pid, number)

    def _reap(self) -> None:
        """Collect every child that ended; a worker's process group ends with the worker."""
        while True:
            try:
                status = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if status is None:
                return
            worker_id = self._ids.pop(status.si_pid, None)
            if worker_id is not None:
                code = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
                self._tell(op="exited", id=worker_id, code=code)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(status.si_pid, signal.SIGKILL)  # not reaped yet, so the number is still ours
            os.waitpid(status.si_pid, 0)

    def _rest(self, _: Collection[int]) -> None:
        select.select([self._wake_r], [], [], processes.ROUND_S)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_r, 4096)
        self._reap()


def _read(request_fd: int) -> dict[str, Any]:
    """What a request file holds; it may have been read before."""
    with open(request_fd, "rb", closefd=False) as file:
        file.seek(0)
        request: dict[str, Any] = json.loads(file.read())
    return request


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """One packet and its descriptors, which no program inherits (Python's own `recv_fds` ignores that flag)."""
    packet, ancillary, _, _ = sock.recvmsg(MAX_PACKET_BYTES, socket.CMSG_SPACE(_MAX_FDS * 4), socket.MSG_CMSG_CLOEXEC)
    fds = [data for level, kind, data in ancillary if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)]
    return packet, [int(fd) for data in fds for fd in memoryview(data).cast("i")]


def serve(agent: socket.socket, *, copies: bool = False) -> None:
    """Be the spawner of whoever has the other end of `agent`, until that end is closed. copies: see `Spawner`."""
    processes.name_itself(NAME)
    processes.adopt_orphans()
    inherited = [number for number in _TERMINAL if signal.getsignal(number) is signal.SIG_IGN]
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)  # the agent decides; its end is what ends us
    Spawner(agent, inherited, copies=copies).run()
