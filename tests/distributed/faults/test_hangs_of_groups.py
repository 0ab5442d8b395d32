"""A rank that does not come to a collective is named, whichever collective, function and backend it is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import extent
import numpy as np
import pytest

from resilin import distributed as dist
from resilin._base import env, flight
from resilin._base.clock import SYSTEM, Deadline
from resilin.distributed.backends import registry
from resilin.distributed.wire import loader
from resilin.distributed.wire.frames import Kind
from resilin.elastic.agent import stragglers
from resilin.elastic.hangs.step_time import FLOOR_S, StepTime
from resilin.testing import hangs
from resilin.testing.faults import FaultPlan
from resilin.testing.hangs import COLLECTIVES, HUNG, LIMIT_S, Hanging, Make, Named
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import TRANSPORTS, run_ranks

SIZE = 3
TRIED = {
    "cpu": "here, on each way that its bytes go",
    "gloo": "another name of cpu",
    "mpi": "here, under mpiexec",
    "nccl": "tests/gpu/test_hangs_on_device.py",
    "cuda_ipc": "tests/gpu/test_hangs_on_device.py",
}


def is_named(found: Named, what: str) -> bool:
    """Whether the rank is named, and what the others wait in for it."""
    return found.verdict.ranks == (HUNG,) and f"in {what} " in found.verdict.reason


def test_every_backend_and_every_kind_of_collective_is_tried() -> None:
    assert set(TRIED) == set(registry._BUILT_IN)
    kinds = {kind.name.lower() for kind in Kind}
    assert kinds == {*COLLECTIVES, "p2p", "new_group"}, "of these two functions below make some"


@pytest.mark.parametrize("transport", extent.short(TRANSPORTS, of=["shm", "hosts"]))  # hosts: over TCP, too
def test_the_rank_that_is_missing_from_a_collective_is_named(tmp_path: Path, transport: str) -> None:
    found = hangs.hangs(tmp_path, SIZE, COLLECTIVES, transport=transport)
    assert list(found) == list(COLLECTIVES)
    assert not {name: one for name, one in found.items() if not is_named(one, name)}
    assert all(LIMIT_S <= one.silent_s < 8.0 for one in found.values())


@pytest.mark.parametrize("transport", extent.short(TRANSPORTS, of=["hosts"]))
def test_at_the_limit_that_real_jobs_have_it_takes_less_than_eight_seconds(tmp_path: Path, transport: str) -> None:
    found = hangs.hang(tmp_path, SIZE, COLLECTIVES["tree_all_reduce"], transport=transport, pace=StepTime())
    assert is_named(found, "tree_all_reduce"), found
    assert FLOOR_S <= found.silent_s < 8.0


def _frozen(folder: Path, phase: str, then: Callable[[], Any] = lambda: None, **options: Any) -> dict[str, Named]:
    """By collective, what is said when rank HUNG hangs inside of it, at `phase`."""
    found = {}
    for name in COLLECTIVES:
        frozen = FaultPlan().freeze(HUNG, name, call=int(name == "barrier"), phase=phase)  # one there is before it

        def call(rank: int, make: Make, name: str = name) -> None:
            COLLECTIVES[name](rank, make)
            then()

        (folder / name).mkdir()
        found[name] = hangs.hang(folder / name, SIZE, call, comes=frozen, **options)
        assert frozen.all_fired()
    return found


@pytest.mark.parametrize("transport", extent.short(["shm", "hosts"], of=["shm"]))
def test_a_rank_that_hangs_inside_a_collective_before_it_tells_the_others_is_named(
    tmp_path: Path, transport: str
) -> None:
    """All are inside of it, but one has said nothing yet."""
    found = _frozen(tmp_path, "start", transport=transport)
    assert not {name: one for name, one in found.items() if not is_named(one, name)}


def test_a_rank_that_does_not_come_out_of_a_collective_that_the_others_have_finished_is_named(tmp_path: Path) -> None:
    """It is inside of one, as they are, but waits for nobody."""
    found = _frozen(tmp_path, "end", dist.barrier)
    assert not {name: one for name, one in found.items() if not is_named(one, "barrier")}


def test_who_takes_longer_between_sums_along_a_tree_is_found_slow(tmp_path: Path) -> None:
    def rank_main(rank: int) -> None:
        for _ in range(stragglers.FEW + 5):
            if rank == HUNG:
                SYSTEM.sleep(0.01)
            COLLECTIVES["tree_all_reduce"](rank, np.asarray)

    with hangs.recorders(tmp_path, SIZE) as files:
        run_ranks(SIZE, rank_main).results()
        tempos = {rank: stragglers.tempo(flight.read(path).calls) for rank, path in enumerate(files)}
    assert list(stragglers.slow({rank: each for rank, each in tempos.items() if each is not None})) == [HUNG]


MPI = """
import sys, time
from pathlib import Path
import numpy as np
from resilin import dist
from resilin.testing.hangs import COLLECTIVES, HUNG
folder = Path(sys.argv[1])
dist.init_process_group("mpi", timeout=60.0)
rank = dist.get_rank()
for name, call in COLLECTIVES.items():
    dist.barrier()
    (folder / f"{name}.{rank}").touch()
    while rank == HUNG and not (folder / f"{name}.named").exists():
        time.sleep(0.01)
    call(rank, np.asarray)
dist.destroy_process_group()
"""


def test_the_rank_that_is_missing_from_a_collective_over_mpi_is_named(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py", reason="mpi4py and an MPI come with the extra `test`")
    mpiexec = Path(sys.executable).parent / "mpiexec"
    if not mpiexec.exists():
        pytest.skip("the extra `test` brings mpich with its mpiexec on Linux")
    program = [str(mpiexec), "-n", str(SIZE), sys.executable, "-c", MPI, str(tmp_path)]
    variables = env.snapshot({"RESILIN_TRACE_DIR": str(tmp_path / "trace")})
    found = {}
    with subprocess.Popen(program, env=variables, stderr=subprocess.PIPE, text=True, start_new_session=True) as job:
        try:
            for name in COLLECTIVES:
                patience = Deadline(PATIENCE_S)
                while len(list(tmp_path.glob(f"{name}.?"))) < SIZE and job.poll() is None and not patience.passed():
                    SYSTEM.sleep(0.01)
                files = sorted((tmp_path / "trace").glob("*.flight"), key=lambda path: flight.read(path).calls[0].rank)
                found[name] = hangs.watch(files, StepTime(LIMIT_S))
                (tmp_path / f"{name}.named").touch()
            assert job.wait(PATIENCE_S) == 0, job.stderr and job.stderr.read()
        finally:
            job.kill()
    assert not {name: one for name, one in found.items() if not is_named(one, name)}


# ------------------------------------------------------------------------------------- public functions


def _from_all(rank: int, wait: Callable[[Any], Any]) -> None:
    """Rank HUNG sends to all others."""
    if rank == HUNG:
        for other in set(range(SIZE)) - {HUNG}:
            dist.send(np.ones(2), other)
    else:
        wait(np.ones(2))


def _to_all(rank: int, start: Callable[[Any], Any]) -> None:
    """All send to rank HUNG more than waits anywhere on its way."""
    big = np.ones(1 << 22)
    if rank == HUNG:
        for other in set(range(SIZE)) - {HUNG}:
            dist.recv(big, other)
    else:
        start(big)


def _batch(rank: int) -> None:
    right, left = (rank + 1) % SIZE, (rank - 1) % SIZE
    ops = [
        dist.P2POp(dist.isend, np.ones(2), right),
        dist.P2POp(dist.irecv, np.ones(2), left),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


def _block(rank: int) -> None:
    with dist._coalescing_manager():
        for _ in range(2):
            dist.all_reduce(np.ones(2))


def _objects_from(rank: int) -> None:
    if rank == HUNG:
        for other in set(range(SIZE)) - {HUNG}:
            dist.send_object_list(["x"], other)
    else:
        dist.recv_object_list([None], HUNG)


def _of(rank: int, root: int, value: Any) -> Any:
    return value if rank == root else None


FUNCTIONS: dict[str, tuple[str, Callable[[int], Any]]] = {
    "all_gather": ("all_gather", lambda rank: dist.all_gather([np.ones(2) for _ in range(SIZE)], np.ones(2))),
    "all_gather_coalesced": (
        "all_gather", lambda rank: dist.all_gather_coalesced([[np.ones(2)] for _ in range(SIZE)], [np.ones(2)])
    ),
    "all_gather_into_tensor": ("all_gather", lambda rank: dist.all_gather_into_tensor(np.ones(2 * SIZE), np.ones(2))),
    "all_gather_object": ("all_gather", lambda rank: dist.all_gather_object([None] * SIZE, "x")),
    "all_gather_single": ("all_gather", lambda rank: dist.all_gather_single(np.ones(2 * SIZE), np.ones(2))),
    "all_reduce": ("all_reduce", lambda rank: dist.all_reduce(np.ones(2))),
    "all_reduce_coalesced": ("all_reduce", lambda rank: dist.all_reduce_coalesced([np.ones(2), np.ones(3)])),
    "all_to_all": ("all_to_all", lambda rank: dist.all_to_all([np.ones(2) for _ in range(SIZE)], [np.ones(2)] * SIZE)),
    "all_to_all_single": ("all_to_all", lambda rank: dist.all_to_all_single(np.ones(SIZE), np.ones(SIZE))),
    "barrier": ("barrier", lambda rank: dist.barrier()),
    "batch_isend_irecv": ("recv", _batch),
    "broadcast": ("broadcast", lambda rank: dist.broadcast(np.ones(2), HUNG)),
    "broadcast_object_list": ("broadcast", lambda rank: dist.broadcast_object_list(["x"], HUNG)),
    "gather": ("gather", lambda rank: dist.gather(np.ones(2), _of(rank, 0, [np.ones(2) for _ in range(SIZE)]), 0)),
    "gather_object": ("all_gather", lambda rank: dist.gather_object("x", _of(rank, 0, [None] * SIZE), 0)),
    "gather_single": ("gather", lambda rank: dist.gather_single(np.ones(2), _of(rank, 0, np.ones(2 * SIZE)), 0)),
    "irecv": ("recv", lambda rank: _from_all(rank, lambda array: dist.irecv(array, HUNG).wait())),
    "isend": ("send", lambda rank: _to_all(rank, lambda array: dist.isend(array, HUNG).wait())),
    "monitored_barrier": ("recv", lambda rank: dist.monitored_barrier()),
    "new_group": ("new_group", lambda rank: dist.new_group([0, 1])),
    "new_subgroups": ("new_group", lambda rank: dist.new_subgroups(1)),
    "new_subgroups_by_enumeration": ("new_group", lambda rank: dist.new_subgroups_by_enumeration([[0, 2], [1]])),
    "recv": ("recv", lambda rank: _from_all(rank, lambda array: dist.recv(array, HUNG))),
    "recv_object_list": ("recv", _objects_from),
    "reduce": ("reduce", lambda rank: dist.reduce(np.ones(2), 0)),
    "reduce_scatter": ("reduce_scatter", lambda rank: dist.reduce_scatter(np.ones(2), [np.ones(2)] * SIZE)),
    "reduce_scatter_single": ("reduce_scatter", lambda rank: dist.reduce_scatter_single(np.ones(1), np.ones(SIZE))),
    "reduce_scatter_tensor": ("reduce_scatter", lambda rank: dist.reduce_scatter_tensor(np.ones(1), np.ones(SIZE))),
    "scatter": (
        "scatter", lambda rank: dist.scatter(np.ones(2), _of(rank, HUNG, [np.ones(2) for _ in range(SIZE)]), HUNG)
    ),
    "scatter_object_list": (
        "broadcast", lambda rank: dist.scatter_object_list([None], _of(rank, HUNG, ["x"] * SIZE), HUNG)
    ),
    "send": ("send", lambda rank: _to_all(rank, lambda array: dist.send(array, HUNG))),
    "split_group": ("new_group", lambda rank: dist.split_group(None, [[0, 1, 2]])),
    "tree_all_reduce": ("tree_all_reduce", lambda rank: COLLECTIVES["tree_all_reduce"](rank, np.asarray)),
    "_coalescing_manager": ("all_reduce", _block),
}  # fmt: skip
ELSEWHERE = {
    "init_process_group": "there is no group yet, and so no record: who meets waits in the store, for as long as asked",
    "_reconfigure": "likewise: the others connect anew",
    "shrink_group": "likewise: whoever is not to leave connects anew",
    "send_object_list": "with recv_object_list",
    "collect_all": "of futures",
    "wait_all": "of futures",
    "destroy_process_group": "waits for nobody",
}
"""Functions of `resilin.distributed` that may wait, and are not above."""
ALONE = {
    "CoordinationStore", "_get_process_group_name", "_get_reconfigure_handle", "_make_nccl_premul_sum",
    "_supports_reconfigure", "default_group", "get_backend", "get_backend_config", "get_default_backend_for_device",
    "get_global_rank", "get_group_rank", "get_node_local_rank", "get_pg_count", "get_process_group_ranks", "get_rank",
    "get_world_size", "is_available", "is_backend_available", "is_gloo_available", "is_initialized", "is_mpi_available",
    "is_nccl_available", "is_torchelastic_launched", "is_ucc_available", "is_xccl_available",
    "register_rendezvous_handler", "rendezvous", "set_default_group", "set_timeout", "supports_complex", "use_group",
}  # fmt: skip
"""Those that need no other rank."""


def test_every_public_function_in_which_ranks_wait_is_tried() -> None:
    functions = {
        name for name in dist.__all__ if callable(found := getattr(dist, name)) and not isinstance(found, type)
    }
    known = {*FUNCTIONS, *ELSEWHERE, *ALONE} - {"CoordinationStore"}
    assert functions == known, functions ^ known


PARTS = 3  # of them, so that they spread over the cores


@pytest.mark.parametrize("part", range(PARTS))
def test_the_rank_that_is_missing_from_a_public_function_is_named(tmp_path: Path, part: int) -> None:
    tried = {name: FUNCTIONS[name] for name in list(FUNCTIONS)[part::PARTS]}
    calls: dict[str, Hanging] = {name: (lambda rank, _, f=f: f(rank)) for name, (_, f) in tried.items()}
    found = hangs.hangs(tmp_path, SIZE, calls)
    sent = () if loader.shared_memory else ("send", "isend")  # over sockets the receiver's memory takes a message in,
    wrong = {  # and who has sent it waits in what comes next
        name: found[name]
        for name, (what, _) in tried.items()
        if not is_named(found[name], what) and not (name in sent and is_named(found[name], "barrier"))
    }
    assert not wrong
