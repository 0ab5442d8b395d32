"""The Unix sockets at which agents of this machine answer their own user: `resilin status`, `top`, `drain`, `scale`.

They lie in a folder that only this user may enter, and both ends ask the kernel who the other one is; so even a job in
which nothing listens can be asked. Frames of `_base.framing`, each one JSON object:

    {"op": "who"}                                            -> {"job": j, "node": n, "alone": no other can come}
    {"op": "range", "prefix": p}                             -> {"entries": [[key, text, create, mod], ...]}
    {"op": "put", "key": k, "mod": revision, "text": t}      -> {"written": bool}
    {"op": "hold", "key": k}                                 -> {}   the key is there until the connection ends
    anything that cannot be done                             -> {"error": text}
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from resilin._base import auth, env, framing, json_text, private_files
from resilin._base.clock import SYSTEM, Deadline
from resilin.elastic import records
from resilin.elastic.agent import stragglers
from resilin.errors import HandshakeError, ResilinError, StoreError, StoreTimeout
from resilin.store.base import KeyValue, Lease, Store

_MAX_BYTES = 16 << 20
_BACKLOG = 8
_TEXT = ("utf-8", "surrogateescape")  # JSON carries any bytes so: the roster is compressed
_SUFFIX, _UNHEARD = ".sock", ".new"
_UNHEARD_S = 60.0  # an agent hears within milliseconds
HOLD_S = 10.0
TIMEOUT_S = 5.0


def folders() -> Iterator[Path]:
    """Where this user's sockets may lie: one agent may have a session's folder in its environment, another one not."""
    runtime = env.get("XDG_RUNTIME_DIR")
    if runtime:
        yield Path(runtime) / "resilin"
    yield Path(f"/tmp/resilin-{os.getuid()}")


def folder() -> Path:
    """The first of `folders` that can be used, made when it is not there. OSError: none can be, or is ours alone."""
    problem: OSError | None = None
    for path in folders():
        try:
            private_files.own_folder(path)
            return path
        except OSError as error:
            problem = error
    assert problem is not None
    raise problem


# ---------------------------------------------------------------------------------------------- an agent's side


class Desk:
    """Answers at a socket of its own for one node of `job`. Use `opened`, in the agent's loop."""

    def __init__(self, store: Store, job: str, node_id: str, *, in_process: bool, alone: bool) -> None:
        self._store = store
        self._in_process = in_process  # then calls never block
        self._who = {"job": job, "node": node_id, "alone": alone}
        self._prefixes = (records.Keys(job).job, records.live_prefix(job), stragglers.slow_prefix(job))

    @contextlib.asynccontextmanager
    async def opened(self) -> Any:
        """Answer until the block ends. OSError when there is no place for a socket."""
        path = folder() / f"{os.getpid()}-{secrets.token_hex(3)}{_SUFFIX}"
        unheard = path.with_suffix(_UNHEARD)
        connections: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connections.add(task)
            try:
                await self._serve(reader, writer)
            finally:
                connections.discard(task)
                writer.close()

        listening = socket.socket(socket.AF_UNIX)
        try:
            os.fchmod(listening.fileno(), 0o600)  # before it has a name: at no moment is it anybody else's
            listening.bind(str(unheard))
        except OSError:
            listening.close()
            raise
        server = await asyncio.start_unix_server(serve, sock=listening, limit=_MAX_BYTES, backlog=_BACKLOG)
        try:
            unheard.rename(path)  # now it answers: whoever finds one that does not may remove it
            yield path
        finally:
            server.close()
            for task in connections:
                task.cancel()
            await asyncio.gather(*connections, return_exceptions=True)
            path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        leases: list[Lease] = []
        decoder = framing.FrameDecoder(_MAX_BYTES)
        try:
            auth.require_same_user(writer.get_extra_info("socket"))
            while data := await reader.read(1 << 16):
                for payload in decoder.feed(data):
                    writer.write(framing.encode(json.dumps(await self._answer(payload, leases)).encode()))
                    await writer.drain()
        except (OSError, ResilinError):  # it hung up, is somebody else's, or does not speak this: nobody to tell
            return
        finally:
            for lease in leases:
                with contextlib.suppress(StoreError):
                    await self._call(lease.revoke)

    async def _answer(self, payload: bytes, leases: list[Lease]) -> dict[str, Any]:
        try:
            return await self._do(json_text.parse(payload), leases)
        except (ResilinError, ValueError, KeyError, TypeError, AttributeError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    async def _do(self, request: dict[str, Any], leases: list[Lease]) -> dict[str, Any]:
        op = request["op"]
        if op == "who":
            return dict(self._who)
        key = str(request["prefix" if op == "range" else "key"])
        if not key.startswith(self._prefixes):
            raise ValueError(f"{key!r} does not belong to this job")
        if op == "range":
            entries, _ = await self._call(lambda: self._store.range(key))
            return {
                "entries": [[kv.key, kv.value.decode(*_TEXT), kv.create_revision, kv.mod_revision] for kv in entries]
            }
        if op == "put":
            value, revision = str(request["text"]).encode(*_TEXT), int(request["mod"])
            written, _ = await self._call(lambda: self._store.compare_and_put(key, revision, value))
            return {"written": written}
        if op == "hold":
            leases.append(await self._call(lambda: hold(self._store, key)))
            return {}
        raise ValueError(f"unknown op {op!r}")

    async def _call(self, call: Callable[[], Any]) -> Any:
        return call() if self._in_process else await asyncio.get_running_loop().run_in_executor(None, call)


def hold(store: Store, key: str) -> Lease:
    """Have `key` in `store` until the lease is revoked, or a little after this process has ended."""
    lease = store.lease(HOLD_S)
    store.put(key, b"{}", lease)
    return lease


# ------------------------------------------------------------------------------------------------ a user's side


class AgentClient:
    """A connection to one agent of this machine; what it does to the job's store, that agent does."""

    def __init__(self, path: Path) -> None:
        """OSError: nobody answers there any more."""
        self.name = str(path)
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(str(path))
            auth.require_same_user(self._socket)
            who = self._ask(op="who")
        except BaseException:
            self._socket.close()
            raise
        self.job, self.node, self.alone = str(who["job"]), str(who["node"]), bool(who["alone"])
        self.pid = auth.peer_process(self._socket)
        """The process that answers."""

    def range(self, prefix: str) -> list[KeyValue]:
        """The entries whose keys begin with `prefix`."""
        return [
            KeyValue(key=key, value=text.encode(*_TEXT), create_revision=create, mod_revision=mod, version=0)
            for key, text, create, mod in self._ask(op="range", prefix=prefix)["entries"]
        ]

    def compare_and_put(self, key: str, revision: int, value: bytes) -> bool:
        """Write `value` if the entry is still that of `revision` (0: none); whether it was."""
        return bool(self._ask(op="put", key=key, mod=revision, text=value.decode(*_TEXT))["written"])

    def hold(self, key: str) -> None:
        """Have `key` there until `close`."""
        self._ask(op="hold", key=key)

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def _ask(self, **request: Any) -> dict[str, Any]:
        try:
            framing.send_frame(self._socket, json.dumps(request).encode())
            answer: dict[str, Any] = json_text.parse(framing.recv_frame(self._socket, Deadline(TIMEOUT_S), _MAX_BYTES))
        except TimeoutError:
            raise StoreTimeout(
                f"the elastic-run at {self.name} did not answer within {TIMEOUT_S:g} s: it may be stopped, or "
                "wait for its store, which is away"
            ) from None
        except (framing.FrameError, OSError) as error:
            raise StoreError(f"the elastic-run at {self.name} has ended: {error}") from None
        if "error" in answer:
            raise StoreError(f"the elastic-run at {self.name} could not {request['op']}: {answer['error']}")
        return answer


def agents() -> Iterator[AgentClient]:
    """A connection to each agent of this user on this machine; whoever takes one closes it."""
    for place in folders():
        with contextlib.suppress(OSError):  # nothing there, or not this user's alone
            private_files.check_own_folder(place)
            for path in sorted(place.glob(f"*{_SUFFIX}")):
                if (client := _client(path)) is not None:
                    yield client


def clear() -> list[Path]:
    """Remove the sockets of agents of this user that were killed; which these were."""
    return [path for place in folders() for path in _sockets(place) if _is_dead(path) and _removed(path)]


def _sockets(place: Path) -> list[Path]:
    with contextlib.suppress(OSError):  # nothing there, or not this user's alone
        private_files.check_own_folder(place)
        return sorted((*place.glob(f"*{_SUFFIX}"), *place.glob(f"*{_UNHEARD}")))
    return []


def _is_dead(path: Path) -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        if path.suffix == _UNHEARD and SYSTEM.wall() - path.lstat().st_mtime < _UNHEARD_S:
            return False
        probe.setblocking(False)  # an agent that is stopped may have no room for one more
        return probe.connect_ex(str(path)) == errno.ECONNREFUSED
    return False


def _removed(path: Path) -> bool:
    with contextlib.suppress(OSError):  # another process removes it, too
        path.unlink()
        return True
    return False


def _client(path: Path) -> AgentClient | None:
    try:
        return AgentClient(path)
    except ConnectionRefusedError:  # its agent was killed and could not remove it
        path.unlink(missing_ok=True)
    except (OSError, StoreError, HandshakeError):  # it ends just now, or is another user's
        pass
    return None
