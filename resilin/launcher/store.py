"""`resilin store serve`: the embedded store as a program of its own, for jobs whose agents come and go."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from resilin._base import descriptors
from resilin._base import secret as job_secret
from resilin.launcher import flag_types, output
from resilin.store.connect import EMBEDDED_PORT
from resilin.store.memory import MemoryStore

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `resilin store`."""
    commands = parser.add_subparsers(dest="store_command", required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="serve the embedded store until SIGTERM",
        description="Serve the embedded store: etcd v3's API over memory. elastic-run joins it with "
        "--rdzv-backend embedded --rdzv-endpoint HOST:PORT; etcdctl can look in, from this host, with --user "
        "resilin:SECRET. "
        "Without a secret it listens on loopback alone, and serves processes of its own user and of root.",
    )
    serve.add_argument("--host", default="127.0.0.1", help="name or address to listen on (default: %(default)s)")
    serve.add_argument("--port", type=int, default=EMBEDDED_PORT, help="port, 0: any free one (default: %(default)s)")
    serve.add_argument(
        "--secret-file",
        metavar="FILE",
        help="file whose text is the job's secret (default: the environment variable RESILIN_SECRET)",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; prints one line with the store's URL once it listens. 0 after SIGTERM, SIGINT or SIGHUP.

    Raises UsageError (a port in use, an unreadable secret) and SecretRequired; the caller maps them to exit codes.
    """
    from resilin.store.server import StoreServer  # loads grpc (60 to 100 ms), which no other subcommand needs

    flag_types.port("--port", args.port)
    descriptors.raise_limit()
    secret = job_secret.given(args.secret_file) or None
    with _stop_signals() as wait, MemoryStore() as state, StoreServer(state, args.host, args.port, secret) as server:
        user = "--user resilin:SECRET " if secret else ""
        endpoint = server.url.removeprefix("embedded://")
        output.show(f"serving {server.url}  (look in: etcdctl --endpoints {endpoint} {user}get --prefix /resilin/)")
        wait()
    return 0


@contextmanager
def _stop_signals() -> Iterator[Callable[[], None]]:
    """A function that waits for the first of the usual signals; the former handlers come back afterwards.

    It waits for what the interpreter writes to a pipe: the kernel may give a signal to any thread, and the main thread
    would not wake up from a lock, to run a handler, when another one got it.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)  # set_wakeup_fd demands it
    former_fd = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    former = {number: signal.signal(number, _ignore) for number in _SIGNALS}

    def wait() -> None:
        while os.read(reading, 1)[0] not in _SIGNALS:  # one byte for each signal that has a handler
            pass

    try:
        yield wait
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(former_fd)
        os.close(reading)
        os.close(writing)


def _ignore(number: int, frame: FrameType | None) -> None:
    """A handler: without one the interpreter writes nothing for a signal."""
