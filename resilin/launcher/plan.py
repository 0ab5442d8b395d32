"""Turns the command line into what will be done, and refuses what cannot work. Starts nothing; makes the log
folder and the event log, to be sure that they can be written (not with --dry-run)."""

from __future__ import annotations

import argparse
import glob
import math
import secrets
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

from resilin._base import env, host_port
from resilin._base import secret as job_secret
from resilin._base.host import address_towards, cpu_count, is_on_loopback
from resilin._base.host_port import HostPort
from resilin.elastic.agent.console import Name
from resilin.elastic.agent.stream_selection import StreamSelection
from resilin.elastic.membership.view import Config
from resilin.elastic.spawn import environment
from resilin.elastic.spawn.program import Program
from resilin.errors import SecretRequired, UsageError
from resilin.launcher import addresses, flag_types, programs, scheduler_env
from resilin.store.connect import DEFAULT_PORTS, EMBEDDED_PORT, endpoints_of, without_password

Backend = Literal["standalone", "embedded", "etcd", "file"]
_N = TypeVar("_N", int, float)
DEFAULT_MASTER_PORT = 29500
_GIVE_A_SECRET = (
    "Give all nodes the same secret (--secret-file FILE or RESILIN_SECRET; `elastic-run --make-secret` makes one)"
)
MAX_WORKERS = 4096  # of one node: each is a process with descriptors of ours
_BACKENDS = {"embedded": "embedded", "c10d": "embedded", "etcd": "etcd", "etcd-v2": "etcd", "file": "file"}
# keys of torchrun that have no meaning here: accepted, so that scripts need no change
_IGNORED_CONF = {
    "close_timeout", "heartbeat_timeout", "keep_alive_interval", "keep_alive_max_attempt", "cas_backoff_max_seconds",
    "store_type", "protocol", "timeout", "rank",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """Where the nodes meet."""

    backend: Backend
    endpoint: str
    """host:port, an IPv6 address in brackets; several for etcd; a folder for file; empty for standalone."""
    is_host: bool | None
    """Embedded: whether this node serves the store. None: when the endpoint's address is its own and is free."""
    connect_timeout_s: float
    join_timeout_s: float
    lease_ttl_s: float
    login: flag_types.Login = field(default_factory=flag_types.Login)
    """For an etcd with users."""

    @property
    def place(self) -> HostPort:
        """Where the embedded store is."""
        return host_port.parse(self.endpoint, "--rdzv-endpoint")


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """A command line that can be carried out."""

    meeting: Meeting
    job: environment.JobEnvironment
    membership: Config
    program: Program
    workers: int
    address: str
    master_port: int
    """0: any free port."""
    rank_hint: int
    shutdown_timeout_s: float
    hang_timeout_s: float | None
    """0: learned from the steps; None: off."""
    signals: tuple[int, ...]
    log_dir: Path | None
    redirects: StreamSelection
    tee: StreamSelection
    global_ranks: bool
    """Whether the numbers in `redirects` and `tee` are global ranks."""
    shown_ranks: frozenset[int] | None
    shown_global_ranks: frozenset[int] | None
    filters: dict[Name, tuple[str, ...]]
    prefix: str
    event_log: Path | None
    health_port: int = 0
    """0: none."""
    termination_message: Path | None = None
    notice: str = ""
    """A line for people about what was found around this process; may be empty."""


def make(args: argparse.Namespace, program: Program | None = None) -> LaunchPlan:
    """The plan for parsed arguments. program: theirs, when it is known already.

    UsageError or SecretRequired says what is wrong and what to do.
    """
    _refuse_foreign(args)
    notice = scheduler_env.fill(args, env.snapshot())
    low, high = flag_types.nodes(args.nnodes)
    conf, words = _conf(args.rdzv_conf)
    workers = _workers(str(args.nproc_per_node))
    _at_least("--monitor-interval", float(args.monitor_interval), 0.0)  # it has no use here, but a mistake is one
    flag_types.node_rank(int(args.node_rank), high)
    meeting = _meeting(args, high, conf, words)
    secret = _secret(args, meeting)
    local = host_port.host(str(args.local_addr), "--local-addr") if args.local_addr else None
    if high > 1:
        meeting = _reachable(meeting, local, secret)
    address = _own_address(local, meeting, secret, several=high > 1)
    _refuse_open_listening(meeting, address, secret)
    _refuse_serving_elsewhere(meeting)
    if local:
        addresses.check_own(address)
    standalone = meeting.backend == "standalone"
    name = (
        flag_types.job_name(args.rdzv_id) if not standalone or args.rdzv_id != "none" else f"job-{secrets.token_hex(4)}"
    )
    config = Config(
        min_nodes=low, max_nodes=high, max_restarts=_at_least("--max-restarts", int(args.max_restarts), 0),
        last_call_s=conf.get("last_call_timeout", 0.5), rejoin_s=conf.get("rejoin_timeout", 0.0),
        max_step_failures=_at_least("--max-step-failures", int(args.max_step_failures), 0),
    )  # fmt: skip
    return LaunchPlan(
        meeting=meeting,
        job=environment.JobEnvironment(
            name=name,
            role=args.role,
            max_restarts=config.max_restarts,
            secret=secret,
            address=address,
            virtual_local_rank=_virtual_local_rank(args, workers),
        ),
        membership=config,
        program=program or programs.of(args),
        workers=workers,
        address=address,
        master_port=_master_port(args),
        rank_hint=flag_types.node_rank(int(args.node_rank), high),
        shutdown_timeout_s=_shutdown_timeout(args.shutdown_timeout),
        hang_timeout_s=flag_types.hang_timeout(args.hang_timeout),
        signals=_signals(args.signals_to_handle),
        log_dir=flag_types.folder("--log-dir", args.log_dir, make=not args.dry_run),
        redirects=StreamSelection.parse(str(args.redirects), "--redirects"),
        tee=StreamSelection.parse(str(args.tee), "--tee"),
        global_ranks=args.log_ranks == "global",
        shown_ranks=_ranks("--local-ranks-filter", args.local_ranks_filter, workers),
        shown_global_ranks=_ranks("--ranks-filter", args.ranks_filter),
        filters=_filters(args),
        prefix=args.log_line_prefix_template or env.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE") or "",
        event_log=flag_types.output_file("--event-log", args.event_log, make=not args.dry_run),
        health_port=flag_types.port("--health-port", int(args.health_port)),
        termination_message=Path(args.termination_message) if args.termination_message else None,
        notice=notice,
    )


# ------------------------------------------------------------------------------------------------ size


def _workers(text: str) -> int:
    if text in ("auto", "cpu", "gpu"):
        gpus = len(glob.glob("/dev/nvidia[0-9]*"))
        if text == "gpu" and gpus == 0:
            raise UsageError("--nproc-per-node gpu: this node has no NVIDIA device (/dev/nvidia0 is missing)")
        return gpus if gpus and text != "cpu" else cpu_count()
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= MAX_WORKERS:
        raise UsageError(
            f"--nproc-per-node: expected a number from 1 to {MAX_WORKERS}, auto, cpu or gpu, got {text[:40]!r}"
        )
    return int(text)


def _at_least(flag: str, value: _N, least: float) -> _N:
    if not least <= value < math.inf:
        raise UsageError(f"{flag}: expected at least {least:g}, got {value:g}")
    return value


def _shutdown_timeout(given: float | None) -> float:
    if given is not None:
        return _at_least("--shutdown-timeout", given, 0.0)
    name = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
    text = env.get(name) or "30"
    try:
        seconds = float(text)
    except ValueError:
        raise UsageError(f"environment variable {name}: expected seconds, got {text!r}") from None
    return _at_least(f"environment variable {name}", seconds, 0.0)


def _ranks(flag: str, text: str, workers: int | None = None) -> frozenset[int] | None:
    if not text:
        return None
    try:
        ranks = frozenset(int(part) for part in text.split(","))
    except ValueError:
        ranks = frozenset({-1})
    if min(ranks) < 0:
        raise UsageError(f"{flag}: expected numbers like 0,2, got {text!r}")
    if workers is not None and min(ranks) >= workers:
        raise UsageError(
            f"{flag} {text}: would hide all output, the {workers} local ranks are 0 to {workers - 1}"
            if workers > 1
            else f"{flag} {text}: would hide all output, the only local rank is 0"
        )
    return ranks


def _filters(args: argparse.Namespace) -> dict[Name, tuple[str, ...]]:
    result: dict[Name, tuple[str, ...]] = {}
    names: tuple[Name, ...] = ("stdout", "stderr")
    for name in names:
        # as torchrun: a comma separates, two are one
        texts = getattr(args, f"duplicate_{name}_filters").replace(",,", "\0").split(",")
        if wanted := tuple(text.replace("\0", ",") for text in texts if text):
            result[name] = wanted
    if result and (not args.log_dir or args.tee == "0"):
        raise UsageError(
            f"--duplicate-{next(iter(result))}-filters: selects teed lines and keeps them under the log folder: "
            "expected --tee 3 (or 1, 2, a map) and --log-dir DIR, too"
        )
    return result


def _virtual_local_rank(args: argparse.Namespace, workers: int) -> bool:
    if args.virtual_local_rank:
        environment.device(env.snapshot(), workers - 1)  # that the last one has a device
    return bool(args.virtual_local_rank)


def _refuse_foreign(args: argparse.Namespace) -> None:
    """Flags of torchrun that name parts of PyTorch: only what they are by default."""
    for flag, value, why in (
        (
            "--event-log-handler",
            args.event_log_handler,
            "handlers are Python plug-ins of PyTorch; use --event-log FILE",
        ),
        ("--logs-specs", args.logs_specs, "they are Python plug-ins of PyTorch; use --log-dir, --redirects and --tee"),
        ("--numa-binding", args.numa_binding, "workers are not bound to CPUs; use --no-python with numactl"),
    ):
        if value.lower() not in ("", "null", "none", "default"):
            raise UsageError(f"{flag} {value}: not available here, {why}")


def _signals(text: str) -> tuple[int, ...]:
    try:
        signals = tuple(signal.Signals[name.strip().upper()] for name in text.split(",") if name.strip())
    except KeyError as error:
        raise UsageError(f"--signals-to-handle: {error.args[0]} is no signal's name") from None
    for number in {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}.intersection(signals):
        why = "tells of every worker's end" if number == signal.SIGCHLD else "cannot be handled by any program"
        raise UsageError(f"--signals-to-handle: {number.name} {why}")
    return signals


# --------------------------------------------------------------------------------------------- meeting


def _conf(text: str) -> tuple[dict[str, float], dict[str, str]]:
    """The numbers and the words of --rdzv-conf."""
    result: dict[str, float] = {}
    words_of: dict[str, str] = {}
    for pair in filter(None, text.split(",")):
        key, _, value = pair.partition("=")
        key = key.strip()
        if key in _IGNORED_CONF:
            continue
        if key in ("user", "password_file"):
            words_of[key] = value
            continue
        if key not in ("join_timeout", "last_call_timeout", "rejoin_timeout", "read_timeout", "lease_ttl", "is_host"):
            raise UsageError(
                f"--rdzv-conf: unknown key {key!r}; known: join_timeout, last_call_timeout, rejoin_timeout, "
                "read_timeout, lease_ttl, is_host; for etcd: user, password_file"
            )
        words = {"true": 1.0, "false": 0.0}
        try:
            number = words[value.lower()] if value.lower() in words else float(value)
        except ValueError:
            number = -1.0
        if not 0 <= number < math.inf or (key == "lease_ttl" and number == 0):
            least = "more than 0" if key == "lease_ttl" else "at least 0"
            raise UsageError(f"--rdzv-conf: {key} expects a number, {least}, got {value!r}")
        result[key] = number
    return result, words_of


def _meeting(args: argparse.Namespace, most: int, conf: dict[str, float], words: dict[str, str]) -> Meeting:
    name, endpoint = args.rdzv_backend, args.rdzv_endpoint
    is_host = bool(conf["is_host"]) if "is_host" in conf else None
    if args.standalone or (most == 1 and not endpoint and name in ("", "c10d", "embedded", "static")):
        if most != 1:
            raise UsageError(f"--standalone is for one node, but --nnodes is {args.nnodes}: leave one of them out")
        backend, endpoint = "standalone", ""
    elif name == "static" or (name == "" and not endpoint and args.node_rank >= 0):
        if args.node_rank < 0:
            raise UsageError("--rdzv-backend static: expected --node-rank 0, 1, ... on each node")
        # rank 0's port is the workers' own: the agents meet one above it
        master = host_port.host(args.master_addr, "--master-addr")
        endpoint = endpoint or host_port.join(master, _master_port(args, host_port.MAX_PORT - 1) + 1)
        backend, is_host = "embedded", args.node_rank == 0
    elif (name or "embedded") in _BACKENDS:
        backend = _BACKENDS[name or "embedded"]
        if not endpoint:
            raise UsageError(
                f"--nnodes {args.nnodes} with backend {backend}: expected --rdzv-endpoint, the same on all nodes"
            )
    else:
        raise UsageError(f"--rdzv-backend: expected embedded, c10d, etcd, file or static, got {name!r}")
    login = flag_types.Login()
    if backend == "embedded":
        place = _place(endpoint)
        endpoint = str(place)
        if place.port == 0:  # any free port: nobody else could know it, so nothing needs to listen
            _refuse_unknown_port(place, args.nnodes, most)
            backend, endpoint = "standalone", ""
    if backend == "etcd":
        endpoint, login = flag_types.etcd(endpoint, words)
        _etcd_members(endpoint)
    elif words:
        raise UsageError(f"--rdzv-conf: {', '.join(words)} is for --rdzv-backend etcd, this is {backend}")
    return Meeting(
        login=login,
        backend=backend,  # type: ignore[arg-type]  # one of the names above
        endpoint=endpoint,
        is_host=is_host,
        connect_timeout_s=conf.get("read_timeout", 30.0),
        join_timeout_s=conf.get("join_timeout", 600.0),
        lease_ttl_s=conf.get("lease_ttl", 5.0),
    )


def _refuse_unknown_port(place: HostPort, nodes: str, most: int) -> None:
    if most > 1:
        raise UsageError(
            f"--rdzv-endpoint {place}: port 0 stands for any free port, but with --nnodes {nodes} the other nodes "
            f"must know it: name one, such as {host_port.join(place.host, EMBEDDED_PORT)}"
        )


def _place(endpoint: str) -> HostPort:
    """Where the embedded store is, as --rdzv-endpoint has it."""
    if "@" in endpoint or "://" in endpoint:
        raise UsageError(
            f"--rdzv-endpoint {without_password(endpoint)}: expected HOST:PORT; users are for --rdzv-backend etcd"
        )
    return host_port.parse(endpoint, "--rdzv-endpoint", default_port=EMBEDDED_PORT, lowest_port=0)


def _etcd_members(endpoint: str) -> list[HostPort]:
    """Where the members of an etcd are, as --rdzv-endpoint has them when the login is taken out of it."""
    hosts = endpoint.rpartition("://")[2].partition("?")[0]
    return endpoints_of(hosts, "--rdzv-endpoint", DEFAULT_PORTS["etcd"])


def _own_address(local_addr: str | None, meeting: Meeting, secret: str, several: bool) -> str:
    """Where other nodes reach this one; loopback when nobody else takes part."""
    if local_addr:
        return _known_to_others(local_addr, f"--local-addr {local_addr}", secret) if several else local_addr
    if meeting.backend == "standalone":
        return "127.0.0.1"
    if meeting.backend == "file":  # a folder leads nowhere; without a secret only nodes of one machine may meet
        return addresses.outward() if several and secret else "127.0.0.1"
    host, port = _etcd_members(meeting.endpoint)[0] if meeting.backend == "etcd" else meeting.place
    if several and addresses.is_loopback_name(host):
        return _known_to_others(host, f"--rdzv-endpoint {meeting.endpoint}", secret)
    try:
        return address_towards(host, port)
    except OSError as error:
        raise UsageError(f"--rdzv-endpoint {meeting.endpoint}: no way to {host}: {error.strerror or error}") from None


def _reachable(meeting: Meeting, local_addr: str | None, secret: str) -> Meeting:
    """`meeting`, and where this host's own name stands for loopback here (/etc/hosts), an address others know it by."""
    if meeting.backend != "embedded" or not addresses.is_loopback_name(meeting.place.host):
        return meeting
    if local_addr and (secret or is_on_loopback(local_addr)):  # the latter: all nodes are meant to run here
        own = local_addr if secret else meeting.place.host
    else:
        own = _known_to_others(meeting.place.host, f"--rdzv-endpoint {meeting.endpoint}", secret)
    return replace(meeting, endpoint=host_port.join(own, meeting.place.port))


def _known_to_others(host: str, flag: str, secret: str) -> str:
    """`host`, but where it is this machine's own name and stands for loopback here, an address others know it by.

    Others means other machines, which take part with a secret only: SecretRequired without one.
    """
    if not addresses.is_loopback_name(host):
        return host
    if not secret:
        raise SecretRequired(
            f"{flag}: on this machine {host} stands for {addresses.address_of(host)} (see /etc/hosts), which no "
            f"other machine reaches, and beyond loopback a job needs a secret. {_GIVE_A_SECRET}; or, if all nodes run "
            "on this machine, name localhost instead"
        )
    return addresses.outward()


def _refuse_open_listening(meeting: Meeting, address: str, secret: str) -> None:
    if not secret and not is_on_loopback(address):
        raise SecretRequired(
            f"this job would listen on {address}, beyond loopback, without a secret: anybody there could take part. "
            f"{_GIVE_A_SECRET}, or use a loopback endpoint"
        )


def _refuse_serving_elsewhere(meeting: Meeting) -> None:
    if meeting.is_host and meeting.backend == "embedded":
        host = meeting.place.host
        if not addresses.is_own(host):
            raise UsageError(
                f"this node (--node-rank 0 or is_host=true) is to serve the store at {meeting.endpoint}, but {host} is "
                "no address of this host: start it on that host, or give all nodes this host's address as "
                "--master-addr or --rdzv-endpoint"
            )


def _secret(args: argparse.Namespace, meeting: Meeting) -> str:
    given = job_secret.given(args.secret_file)
    return given or (job_secret.new_secret() if meeting.backend == "standalone" else "")


def _master_port(args: argparse.Namespace, most: int = host_port.MAX_PORT) -> int:
    static = args.rdzv_backend == "static" or (args.node_rank >= 0 and not args.rdzv_endpoint)
    return flag_types.port("--master-port", int(args.master_port or (DEFAULT_MASTER_PORT if static else 0)), most)
