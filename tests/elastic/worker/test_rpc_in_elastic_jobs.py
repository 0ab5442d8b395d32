"""RPC beside `@elastic.run`: who replaces a worker is called under its name by those that went on."""

import re

import extent
import pytest

pytestmark = pytest.mark.multiproc

PROGRAM = """
import os, pathlib, signal, sys
import numpy as np
import resilin.distributed.rpc as rpc
from resilin import dist, elastic
from resilin.errors import OwnerLost, PeerLost

folder = pathlib.Path(sys.argv[1])
slot = int(os.environ["LOCAL_RANK"])  # which stays the same in every world, also of a replacement
options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder}/rpc")
rpc.init_rpc(f"worker{slot}", rank=slot, rpc_backend_options=options)
print(f"begun {slot} {os.getpid()}", flush=True)
seen = []  # of the process: what went on keeps it
rref = None

@elastic.run
def train(state):
    global rref
    met = False  # whether the others have called the victim, and made what it owns
    while True:
        if state.step >= 5 and met and slot == VICTIM and not (folder / "died").exists():
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            pid = rpc.rpc_sync(f"worker{VICTIM}", os.getpid)
            if pid not in seen:
                seen.append(pid)
            if rref is None:
                rref = rpc.remote(f"worker{VICTIM}", dict)
        except PeerLost as error:
            print(f"lost {slot} {error}", flush=True)
        except RuntimeError as error:
            if "could not find destination" not in str(error):  # it has not begun yet
                raise
        called = [sum(type(one) is int for one in seen) == 2, bool(seen) and rref is not None]
        enough = np.array([float(slot == VICTIM or each) for each in called])
        dist.all_reduce(enough, op=dist.ReduceOp.MIN)
        met = bool(enough[1])
        if enough[0] and dist.get_world_size() == 3:
            return
        state.commit()

train(elastic.State(total=0))
if slot != VICTIM:
    try:
        rref.to_here()
    except OwnerLost as error:
        print(f"owner {slot} {error}", flush=True)
print(f"ended {slot} {os.getpid()} {seen}", flush=True)
rpc.shutdown()
"""


@pytest.mark.parametrize("victim", extent.short([0, 1], of=[0]))
def test_a_replacement_is_called_under_the_name_of_the_dead(launch, script, tmp_path, victim):
    program = script(PROGRAM.replace("VICTIM", str(victim)))
    run = launch("--standalone", "--nproc-per-node", 3, "--max-restarts", 1, program, tmp_path)
    assert run.wait() == 0, run.out + run.err
    begun = [(int(slot), int(pid)) for slot, pid in re.findall(r"^begun (\d) (\d+)$", run.out, re.MULTILINE)]
    first, second = (pid for slot, pid in begun if slot == victim)
    others = {slot: pid for slot, pid in begun if slot != victim}
    assert len(begun) == 4, "those that live begin once"
    for slot, pid in others.items():
        assert f"ended {slot} {pid} [{first}, {second}]" in run.out, "the same process has called both"
        dead = f"worker 'worker{victim}' (id {victim}, host 127.0.0.1, pid {first})"
        told = [line for line in run.out.splitlines() if line.startswith((f"owner {slot} ", f"lost {slot} "))]
        assert told[-1].startswith("owner"), "what the dead had made is lost, with a replacement and without"
        assert all(dead in line for line in told), told
