"""Start worker processes, carry messages to and from them, and report their end once, with everything they said.

`Supervisor` is the agent's side of `spawner.py`; it belongs to one asyncio loop and is used in that loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from resilin._base import log
from resilin.elastic import control
from resilin.elastic.control import Message
from resilin.elastic.spawn import spawner
from resilin.elastic.spawn.spawner_client import Command, SpawnerProcess, request_file
from resilin.errors import ElasticError

_log = log.logger("elastic.supervise")


class Starting(Protocol):
    """Declare what slots need of a `Supervision`."""

    def prepare(self, template: Command) -> None:
        """See `Supervisor.prepare`."""
        ...

    def retire(self) -> None:
        """See `Supervisor.retire`."""
        ...

    def start(self, command: Command, on_message: Callable[[Message], None]) -> Worker:
        """See `Supervisor.start`."""
        ...


class Supervision(Starting, Protocol):
    """Declare what an agent needs of its `Supervisor`."""

    def purge(self) -> None:
        """See `Supervisor.purge`."""
        ...

    async def close(self) -> None:
        """See `Supervisor.close`."""
        ...


Supervise = Callable[[Callable[[], None]], Supervision]  # makes it from what is called when the spawner was lost


class Worker:
    """One started process. `pid` is 0 until it runs; `code` is None until it ended (negative: killed by a signal)."""

    def __init__(
        self, owner: Supervisor, number: int, channel: socket.socket, on_message: Callable[[Message], None]
    ) -> None:
        self.pid = 0
        self.code: int | None = None
        self.refused: OSError | None = None
        self.ended: asyncio.Future[int] = owner.loop.create_future()
        self._owner = owner
        self._number = number
        self._channel = channel
        self._on_message = on_message
        self._decoder = control.Decoder()
        self._outbox = bytearray()
        owner.loop.add_reader(channel, self._receive)

    def __repr__(self) -> str:
        return f"<Worker pid={self.pid} {'alive' if self.code is None else f'code={self.code}'}>"

    @property
    def alive(self) -> bool:
        """Return whether its end has not been reported yet."""
        return self.code is None

    def send(self, message: Message) -> None:
        """Queue `message`; a worker that is gone or does not read never blocks the agent."""
        self._outbox += control.encode(message)
        self._flush()

    def kill(self, number: int) -> None:
        """Send a signal: SIGKILL to its whole process group, any other to the worker alone."""
        if self.alive:
            self._owner.request(op="signal", id=self._number, signal=int(number))

    def wake(self) -> None:
        """Let it run if it is stopped (SIGSTOP): it could not do what it is asked for."""
        self.kill(signal.SIGCONT)

    async def stop(self, grace_s: float, number: int = signal.SIGTERM) -> int:
        """Ask it to end with signal `number`, kill it after `grace_s`; returns its exit code."""
        self.kill(number)
        self.wake()
        try:
            return await asyncio.wait_for(asyncio.shield(self.ended), grace_s)
        except TimeoutError:
            log.event(_log, 30, "worker did not stop in time, killing it", pid=self.pid, grace_s=grace_s)
            self.kill(signal.SIGKILL)
            return await self.ended

    def finished(self, code: int, refused: OSError | None = None) -> None:
        """Called by the supervisor: the process ended. What it still had to say is delivered first."""
        self._receive()
        self._close_channel()
        self.code, self.refused = code, refused
        if not self.ended.done():
            self.ended.set_result(code)

    def _receive(self) -> None:
        while self._channel.fileno() >= 0:
            try:
                data = self._channel.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._close_channel()
                return
            try:
                for message in self._decoder.feed(data):
                    self._on_message(message)
            except control.ControlError as error:
                log.event(_log, 30, "worker sent an invalid control message", pid=self.pid, error=str(error))
                self._close_channel()

    def _flush(self) -> None:
        if self._channel.fileno() < 0:
            return
        try:
            sent = self._channel.send(self._outbox)
            del self._outbox[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._outbox.clear()
        if self._outbox:
            self._owner.loop.add_writer(self._channel, self._flush)
        else:
            self._owner.loop.remove_writer(self._channel)

    def _close_channel(self) -> None:
        if self._channel.fileno() >= 0:
            self._owner.loop.remove_reader(self._channel)
            self._owner.loop.remove_writer(self._channel)
            self._channel.close()


class Supervisor:
    """Owns the workers of one agent. `on_lost` is called when the spawner itself died (its workers die with it).

    say: takes a line for people.
    """

    def __init__(
        self, process: SpawnerProcess, on_lost: Callable[[], None], *, say: Callable[[str], None] | None = None
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._process = process
        self._socket = process.socket
        self._socket.setblocking(False)
        self._on_lost = on_lost
        self._say = say
        self._workers: dict[int, Worker] = {}  # running or about to run, by number
        self._count = 0
        self.loop.add_reader(self._socket, self._receive)

    @property
    def workers(self) -> list[Worker]:
        """Those whose end has not been reported."""
        return list(self._workers.values())

    def start(self, command: Command, on_message: Callable[[Message], None]) -> Worker:
        """Start a process: forked from the template, when there is one and it has a program; else by its `argv`.

        Its messages go to `on_message`; await `worker.ended` for its end.
        """
        streams = [(n, fd) for n, fd in (("o", command.stdout), ("e", command.stderr)) if fd is not None]
        with request_file(command) as file:
            ours, theirs = socket.socketpair()  # the last that can fail: for want of descriptors, say
            ours.setblocking(False)
            self._count += 1
            worker = Worker(self, self._count, ours, on_message)
            self._workers[self._count] = worker
            fds = [file.fileno(), theirs.fileno(), *(fd for _, fd in streams)]
            names = "".join(n for n, _ in streams)
            with theirs:
                self.request(fds, op="spawn", id=self._count, streams=names, warm=bool(command.program))
        return worker

    def prepare(self, template: Command) -> None:
        """Have the process that workers are forked from, if there is none."""
        with request_file(template) as file:
            self.request([file.fileno()], op="prepare")

    def retire(self) -> None:
        """End the process that workers are forked from; until the next `prepare` they are executed."""
        self.request(op="retire")

    def request(self, fds: Sequence[int] = (), **message: Any) -> None:
        """Send one request to the spawner."""
        try:
            self._process.request(fds, **message)
        except BlockingIOError as error:  # hundreds of requests unread: it is stopped or dead
            raise ElasticError("the spawner process does not answer; is it stopped?") from error
        except OSError:
            self.loop.call_soon(self._lost)

    def purge(self) -> None:
        """Kill what earlier workers left behind; does nothing while workers live."""
        if not self._workers:
            self.request(op="purge")

    async def close(self) -> None:
        """Kill every worker and wait for the spawner's end."""
        self.loop.remove_reader(self._socket)
        await self.loop.run_in_executor(None, self._process.close)
        for worker in self.workers:
            worker.finished(-signal.SIGKILL)
        self._workers.clear()

    def _receive(self) -> None:
        while True:
            try:
                packet = self._socket.recv(spawner.MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                self._lost()
                return
            self._handle(json.loads(packet))

    def _handle(self, message: dict[str, Any]) -> None:
        if message["op"] == "mute":
            if self._say is not None:
                self._say(f"the process that workers are forked from {message['text']}")
            return
        worker = self._workers[message["id"]]
        if message["op"] == "spawned":
            worker.pid = message["pid"]
            return
        del self._workers[message["id"]]
        if message["op"] == "refused":
            worker.finished(127, OSError(message["errno"], message["text"]))
        else:
            worker.finished(message["code"])

    def _lost(self) -> None:
        self.loop.remove_reader(self._socket)
        if not self._workers and self._socket.fileno() < 0:
            return
        for worker in self.workers:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if worker.pid:
                    os.killpg(worker.pid, signal.SIGKILL)
            worker.finished(-signal.SIGKILL)
        self._workers.clear()
        self._on_lost()
