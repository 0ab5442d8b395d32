"""Finds out whether Slurm or an MPI launcher started this process, once on each node, and what that says. Pure.

`srun --ntasks-per-node=1 elastic-run train.py` then needs no endpoint, number of nodes or job id. What the user chose,
by a flag, the environment or a file, wins over everything found here.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from resilin._base import host_port
from resilin.errors import UsageError

# below the ports that systems give away (32768 and up), so that a job's port is seldom taken; jobs get different ones
_FIRST_PORT, _PORTS = 20000, 10000
_MAX_HOSTS = 1 << 17


@dataclass(frozen=True, kw_only=True)
class SchedulerEnv:
    """What the launcher of this process told about the job."""

    who: str
    """For people: "Slurm job 17, step 0"."""
    job: str
    nodes: int
    node_rank: int
    tasks_here: int
    """How many processes it started on this node: one is expected."""
    one_each: str
    """How to have one on each node."""
    head: str = ""
    """The host of node rank 0; empty: it did not tell."""

    @property
    def port(self) -> int:
        """The port where the nodes meet: a function of the job, so that all nodes know it."""
        digits = "".join(c for c in self.job.partition(".")[0] if c.isdecimal())
        return _FIRST_PORT + int(digits[-9:] or 0) % _PORTS


def detect(variables: Mapping[str, str]) -> SchedulerEnv | None:
    """What the environment tells; None when nothing started one process on each node."""
    if "SLURM_PTY_PORT" in variables:  # somebody's shell, from `srun --pty`
        return None
    return _slurm(variables) or _open_mpi(variables) or _hydra(variables)


def fill(args: argparse.Namespace, variables: Mapping[str, str]) -> str:
    """Set those of `args` that nobody chose (see `args.given`). Returns a line that says what was found, or ""."""
    found = None if args.standalone else detect(variables)
    if found is None:
        return ""
    given: frozenset[str] = args.given
    if "nnodes" not in given:
        if found.tasks_here > 1:
            raise UsageError(
                f"{found.who} started {found.tasks_here} processes on this node, expected one elastic-run on each "
                f"node, which starts the workers itself: {found.one_each} and --nproc-per-node {found.tasks_here} "
                "(or --standalone for a job of this node alone)"
            )
        args.nnodes = str(found.nodes)
    if "rdzv_id" not in given and found.job:
        args.rdzv_id = found.job
    most = args.nnodes.rpartition(":")[2]
    several = not (most.isdecimal() and int(most) <= 1)
    if several and "node_rank" not in given and most.isdecimal() and found.node_rank < int(most):
        args.node_rank = found.node_rank
    if several:
        _fill_meeting(args, found)
    where = f", meeting at {args.rdzv_endpoint}" if several and args.rdzv_endpoint else ""
    return f"{found.who}: node {found.node_rank} of {found.nodes}, job name {args.rdzv_id}{where}"


def _fill_meeting(args: argparse.Namespace, found: SchedulerEnv) -> None:
    given: frozenset[str] = args.given
    if "rdzv_endpoint" in given or args.rdzv_backend in ("etcd", "etcd-v2", "file"):
        return
    if args.rdzv_backend == "static" or "master_addr" in given:
        if "master_addr" not in given and found.head:
            args.master_addr = found.head
        return
    if not found.head:
        raise UsageError(
            f"{found.who} does not tell its hosts: expected --rdzv-endpoint HOST:PORT with the first node's name, "
            "the same on all nodes"
        )
    args.rdzv_endpoint = host_port.join(found.head, found.port)
    if found.node_rank == 0 and "is_host" not in args.rdzv_conf:
        args.rdzv_conf = ",".join(filter(None, (args.rdzv_conf, "is_host=true")))


# ---------------------------------------------------------------------------------------------- who it may be


def _slurm(variables: Mapping[str, str]) -> SchedulerEnv | None:
    step = variables.get("SLURM_STEP_ID", "")
    listed = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST", "")
    if not step or not listed or "SLURM_NODEID" not in variables:  # without a step: a batch script, on one node
        return None
    hosts = expand(listed)
    rank = _number(variables, "SLURM_NODEID")
    if rank >= len(hosts):
        raise UsageError(f"SLURM_NODEID is {rank}, expected less than the {len(hosts)} hosts of {listed!r}")
    job = variables.get("SLURM_JOB_ID", "")
    tasks = _number(variables, "SLURM_STEP_NUM_TASKS", _number(variables, "SLURM_NTASKS", len(hosts)))
    return SchedulerEnv(
        who=f"Slurm job {job}, step {step}",
        job=f"{job}.{step}",
        nodes=len(hosts),
        node_rank=rank,
        tasks_here=max(1, -(-tasks // len(hosts))),
        one_each="srun --ntasks-per-node=1",
        head=hosts[0],
    )


def _open_mpi(variables: Mapping[str, str]) -> SchedulerEnv | None:
    if "OMPI_COMM_WORLD_SIZE" not in variables:
        return None
    job = variables.get("PMIX_NAMESPACE") or variables.get("OMPI_MCA_ess_base_jobid") or ""
    here = _number(variables, "OMPI_COMM_WORLD_LOCAL_SIZE", 1)
    return _mpi("Open MPI's mpirun", job, variables, "OMPI_COMM_WORLD_", here, "mpirun --map-by ppr:1:node")


def _hydra(variables: Mapping[str, str]) -> SchedulerEnv | None:
    if "PMI_SIZE" not in variables:
        return None
    here = _number(variables, "MPI_LOCALNRANKS", 1)
    return _mpi("mpiexec (PMI)", variables.get("PMI_JOBID") or "", variables, "PMI_", here, "mpiexec -ppn 1")


def _mpi(who: str, job: str, variables: Mapping[str, str], prefix: str, here: int, one_each: str) -> SchedulerEnv:
    return SchedulerEnv(
        who=who,
        job="".join(c if c.isalnum() or c in "-_.@" else "-" for c in job),
        nodes=_number(variables, f"{prefix}SIZE"),
        node_rank=_number(variables, f"{prefix}RANK"),
        tasks_here=here,
        one_each=one_each,
    )


def _number(variables: Mapping[str, str], name: str, default: int = 0) -> int:
    text = variables.get(name, str(default))
    if not text.isdecimal():
        raise UsageError(f"environment variable {name}: expected a number, got {text!r}")
    return int(text)


# ------------------------------------------------------------------------------------- Slurm's lists of hosts


def expand(text: str) -> list[str]:
    """The hosts of a list such as `login,node[01-03,07]` or `rack[1-2]n[1-4]`, in its order."""
    hosts: list[str] = []
    for word in _words(text):
        for parts in product(*_pieces(word, text)):
            hosts.append("".join(parts))
            if len(hosts) > _MAX_HOSTS:
                raise UsageError(f"host list {text[:80]!r}: more than {_MAX_HOSTS} hosts")
    return hosts


def _words(text: str) -> Iterator[str]:
    """What stands between commas that are outside of brackets."""
    word, depth = "", 0
    for sign in text:
        depth += (sign == "[") - (sign == "]")
        if sign == "," and depth == 0:
            yield word
            word = ""
        else:
            word += sign
    yield word


def _pieces(word: str, text: str) -> Iterator[list[str]]:
    """The parts of one word, each with its choices: `n[1-2]x` is n, then 1 or 2, then x."""
    rest = word
    while rest:
        plain, bracket, rest = rest.partition("[")
        if "]" in plain or (bracket and "]" not in rest):
            raise UsageError(f"host list {text[:80]!r}: brackets do not match in {word!r}")
        yield [plain]
        if bracket:
            inside, _, rest = rest.partition("]")
            yield [number for part in inside.split(",") for number in _range(part, text)]


def _range(part: str, text: str) -> Iterator[str]:
    first, dash, last = part.partition("-")
    last = last if dash else first
    if not first.isdecimal() or not last.isdecimal() or int(last) - int(first) > _MAX_HOSTS:
        raise UsageError(f"host list {text[:80]!r}: expected numbers like 01-03, got {part!r}")
    for number in range(int(first), int(last) + 1):
        yield str(number).zfill(len(first))
