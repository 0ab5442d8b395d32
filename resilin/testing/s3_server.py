"""A server that speaks S3's protocol, in a process of its own, which fails and dallies when a test says so.

with S3Server() as server:
    server.make_bucket("models")
    storage = open_storage("s3://models/run", server.options)
    server.fail(503, times=2, method="PUT")
    storage.write("a", b"...")                     # tried three times
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from typing import Any

from resilin.errors import ResilinError

_ANSWER_S = 60.0  # its imports take half a second on an idle machine


class S3Server:
    """One server on a free port of loopback, which keeps objects in memory.

    It ends with its owner, however that ends: its standard input closes. `kill` ends it without a goodbye.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "resilin.testing.s3_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a line for each request
            bufsize=0,
        )
        try:
            self.port = int(self._answer())
        except BaseException:
            self.close()
            raise
        self.url = f"http://127.0.0.1:{self.port}"
        self.options: dict[str, Any] = {"endpoint_url": self.url, "key": "test", "secret": "test"}
        """For `open_storage`."""

    def make_bucket(self, name: str) -> None:
        """Make an empty bucket."""
        self._ask({"bucket": name})

    def fail(self, status: int, times: int = 1, method: str = "", path: str = "", skip: int = 0) -> None:
        """Answer the next `times` requests with this HTTP status; status 0: close the connection without an answer.

        Only requests of `method` whose path contains `path` count, and `skip` of them pass before.
        """
        self._ask({"status": status, "times": times, "method": method, "path": path, "skip": skip, "delay_s": 0.0})

    def delay(self, delay_s: float, times: int = 1, method: str = "", path: str = "", skip: int = 0) -> None:
        """Answer the next `times` requests so much later."""
        self._ask({"status": None, "times": times, "method": method, "path": path, "skip": skip, "delay_s": delay_s})

    def heal(self) -> None:
        """Drop all faults that have not come about."""
        self._ask({"heal": True})

    def requests(self) -> list[str]:
        """All requests since the last call of this, as "PUT /bucket/key"."""
        answer: list[str] = json.loads(self._ask({"requests": True}))
        return answer

    def kill(self) -> None:
        """SIGKILL: connections break, objects are lost, the port refuses."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it, in whatever state it is."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _ask(self, what: dict[str, Any]) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        return self._answer()

    def _answer(self) -> str:
        pipe = self._process.stdout
        assert pipe is not None
        poller = select.poll()  # not `select`, which knows 1024 descriptors
        poller.register(pipe, select.POLLIN)
        line = pipe.readline() if poller.poll(_ANSWER_S * 1000) else b""
        if not line:
            raise ResilinError(
                f"the S3 server does not answer (exit status {self._process.poll()}); does "
                "`python -m resilin.testing.s3_process` start? pip install 'resilin[test]'"
            )
        return line.decode().rstrip("\n")

    def __enter__(self) -> S3Server:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
