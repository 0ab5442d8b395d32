"""Several agents on one machine, meeting in the embedded store, in a real etcd and in a folder."""

import re
import signal
import sys

import extent
import pytest
from launches import INPLACE

from resilin.testing.etcd import EtcdCluster

pytestmark = pytest.mark.multiproc

PLACE = """
import os, sys, time
places = (os.environ[k] for k in ("RANK", "WORLD_SIZE", "GROUP_RANK", "RESILIN_GENERATION"))
os.write(1, (" ".join(places) + "\\n").encode())  # one write: lines of several ranks must not mix
if os.environ["WORLD_SIZE"] != sys.argv[1]:
    time.sleep(1000)
"""


BACKENDS = ("embedded", "etcd", "file")


def short_in(backend):
    """All backends, of which a short run has one; the stores themselves pass one suite (tests/store)."""
    return pytest.mark.parametrize("meeting", extent.short(BACKENDS, of=[backend]), indirect=True)


@pytest.fixture(scope="module")
def etcd():
    """A real etcd; its absence is an error."""
    with EtcdCluster() as cluster:
        yield cluster.endpoints[0]


@pytest.fixture
def meeting(request, tmp_path, free_port):
    """Flags that make agents meet."""
    endpoint = {
        "embedded": lambda: f"localhost:{free_port}",
        "etcd": lambda: request.getfixturevalue("etcd"),
        "file": lambda: str(tmp_path / "meeting"),
    }[request.param]()
    conf = "lease_ttl=2,join_timeout=20"  # shorter ones run out when the machine is busy
    return "--rdzv-backend", request.param, "--rdzv-endpoint", endpoint, "--rdzv-id", tmp_path.name, "--rdzv-conf", conf


def inplace(steps, count):
    return "--no-python", sys.executable, INPLACE, steps, count, 0.01


def two_in_turn(launch, steps, meeting):
    """Two nodes of one job; the second comes when the first trains. They train on until `steps / "hold"` is gone."""
    (steps / "hold").touch()
    first = launch("--nnodes", "1:2", *meeting, *inplace(steps, 10))
    first.until(lambda: "world 1" in first.out)
    second = launch("--nnodes", "1:2", *meeting, *inplace(steps, 10))
    first.until(lambda: "world 2 rank 0/2" in first.out)
    second.until(lambda: "world 2 rank 1/2" in second.out)
    return first, second


@short_in("etcd")
def test_two_nodes_form_one_world(launch, script, meeting):
    program = script(PLACE)
    runs = [launch("--nnodes", 2, "--nproc-per-node", 2, *meeting, program, 4) for _ in range(2)]
    assert [run.wait() for run in runs] == [0, 0]
    places = sorted(line for run in runs for line in run.out.splitlines())
    assert places == ["0 4 0 1", "1 4 0 1", "2 4 1 1", "3 4 1 1"]


@short_in("file")
def test_a_plain_program_is_restarted_in_the_larger_world_when_a_node_joins(launch, script, meeting):
    program = script(PLACE)
    first = launch("--nnodes", "1:2", *meeting, program, 2)
    first.until(lambda: "0 1 0 1" in first.out)
    second = launch("--nnodes", "1:2", *meeting, program, 2)
    assert [first.wait(), second.wait()] == [0, 0]
    assert first.out.splitlines() == ["0 1 0 1", "0 2 0 2"]
    assert second.out.splitlines() == ["1 2 1 2"]


@short_in("embedded")
def test_survivors_go_on_in_place_when_a_node_joins_and_is_lost(launch, steps, meeting):
    first, second = two_in_turn(launch, steps, meeting)
    second.signal(signal.SIGKILL)
    first.until(lambda: "world 3 rank 0/1" in first.out)
    (steps / "hold").unlink()
    assert first.wait() == 0
    assert "is gone, and with it rank 1" in first.err


def test_a_survivor_whose_agent_hears_late_of_a_death_and_of_the_replacement_waits_for_neither(
    launch, steps, free_port
):
    """Its worker may not wait for the dead one, though the newest world began at a commit: of the one between."""
    meeting = ("--rdzv-endpoint", f"localhost:{free_port}", "--rdzv-conf", "lease_ttl=60", "--max-restarts", 1)
    first, second = two_in_turn(launch, steps, meeting)
    second.signal(signal.SIGSTOP)  # the agent; its worker trains on
    (steps / "die-0").write_text("0 SIGKILL")
    first.until(lambda: "generation 4: " in first.err)
    second.signal(signal.SIGCONT)
    second.until(lambda: "world 4 rank " in second.out)
    (steps / "hold").unlink()
    assert [first.wait(), second.wait()] == [0, 0]
    assert (first.err + second.err).count("worker died: ") == 1


@short_in("etcd")
def test_a_node_that_leaves_gracefully_costs_no_step(launch, steps, meeting):
    first, second = two_in_turn(launch, steps, meeting)
    second.signal(signal.SIGTERM)
    assert second.wait() == 128 + signal.SIGTERM
    first.until(lambda: "world 3 rank 0/1" in first.out)
    (steps / "hold").unlink()
    assert first.wait() == 0
    assert "worker died" not in first.err
    assert "is gone" not in first.err


def test_the_last_node_ends_well_when_the_one_that_served_the_store_has_left(launch, steps, free_port):
    meeting = ("--rdzv-endpoint", f"localhost:{free_port}", "--rdzv-id", "left", "--rdzv-conf", "lease_ttl=2")
    first, second = two_in_turn(launch, steps, meeting)
    first.signal(signal.SIGTERM)
    second.until(lambda: "world 3 rank 0/1" in second.out)
    assert first.wait() == 128 + signal.SIGTERM
    second.until(lambda: "does not answer" in second.err)
    (steps / "hold").unlink()
    assert second.wait() == 0
    assert "it ends here, though the store could not be told" in second.err


def test_a_host_that_begins_anew_with_an_empty_store_takes_part_in_what_the_survivor_goes_on_with(
    launch, steps, free_port
):
    meeting = ("--rdzv-endpoint", f"localhost:{free_port}", "--rdzv-id", "anew", "--rdzv-conf", "lease_ttl=2")
    first, second = two_in_turn(launch, steps, meeting)
    first.signal(signal.SIGKILL)
    first.process.wait()
    anew = launch("--nnodes", "1:2", *meeting, *inplace(steps, 10))
    for one in (second, anew):
        one.until(lambda one=one: re.search(r"world \d{3,4} rank \d/2", one.out))
    (steps / "hold").unlink()
    assert [second.wait(), anew.wait()] == [0, 0], second.err
    assert "had lost the records of this job: they are put back, and it goes on" in second.err
    assert re.search(r"generation \d{3,4}: 1 worker \(was 2\), rank 1 goes on as rank 0", second.err), (
        "the same process"
    )
    assert "worker died" not in second.err


@short_in("file")
def test_nodes_that_were_started_with_other_limits_say_so(launch, script, meeting):
    program = script(PLACE)
    runs = [launch("--nnodes", 2, "--max-restarts", count, *meeting, program, 2) for count in (0, 3)]
    assert [run.wait() for run in runs] == [0, 0]
    for run in runs:
        (line,) = [line for line in run.err.splitlines() if "were started differently" in line]
        assert "with --max-restarts 0" in line
        assert "with --max-restarts 3" in line


def test_who_serves_the_store_says_that_it_gave_up_before_it_waits_for_the_others_to_leave(launch, script, free_port):
    place = ("--nnodes", 3, "--rdzv-endpoint", f"localhost:{free_port}", "--rdzv-conf")
    other = launch(*place, "is_host=false,join_timeout=1000,lease_ttl=100,read_timeout=100", script("pass"))
    host = launch(*place, "is_host=true,join_timeout=5,lease_ttl=100", script("pass"))
    host.until(lambda: "gave up after 5 s: " in host.err)
    if "2 of at least 3 nodes" in host.err.splitlines()[-1]:  # else the other one came too late to be waited for
        assert host.process.poll() is None, "it serves the other one as long as its lease"
    other.signal(signal.SIGTERM)
    assert [host.wait(), other.wait()] == [4, 128 + signal.SIGTERM]


@short_in("embedded")
def test_workers_of_all_nodes_restart_when_one_fails(launch, script, meeting):
    program = script(
        "import os, sys, time\n"
        "os.write(1, f\"{os.environ['RANK']} {os.environ['TORCHELASTIC_RESTART_COUNT']}\\n\".encode())\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    sys.exit(7) if os.environ['RANK'] == '1' else time.sleep(1000)\n"
    )
    runs = [launch("--nnodes", 2, "--max-restarts", 1, *meeting, program) for _ in range(2)]
    assert [run.wait() for run in runs] == [0, 0]
    lines = {line for run in runs for line in run.out.splitlines()}
    assert lines - {"0 0"} == {"0 1", "1 0", "1 1"}, "rank 0 may be stopped before it says its first word"


@short_in("etcd")
def test_every_node_reports_the_rank_that_failed_for_good(launch, script, meeting):
    program = script("import os, sys, time\nsys.exit(7) if os.environ['RANK'] == '1' else time.sleep(1000)\n")
    runs = [launch("--nnodes", 2, *meeting, program) for _ in range(2)]
    assert [run.wait() for run in runs] == [1, 1], [run.err for run in runs]
    for run in runs:
        assert "job failed: rank 1 (host" in run.err
        assert "exited with code 7" in run.err


@short_in("file")
def test_a_name_can_be_used_again(launch, script, meeting):
    program = script("pass")
    assert launch("--nnodes", 1, *meeting, program).wait() == 0
    assert launch("--nnodes", 1, *meeting, program).wait() == 0


@short_in("embedded")
def test_an_exception_with_a_huge_message_ends_every_node_with_its_report(launch, script, meeting):
    program = script(
        "import json, os, sys, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    text = 'ValueError: ' + 'x' * 6_000_000\n"
        "    body = {'message': {'message': text, 'extraInfo': {'py_callstack': text}}}\n"
        "    open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write(json.dumps(body))\n"
        "    sys.exit(1)\n"
        "time.sleep(1000)\n"
    )
    nodes = [launch("--nnodes", 2, "--redirects", 3, *meeting, program) for _ in range(2)]
    assert [one.wait() for one in nodes] == [1, 1]
    for one in nodes:
        assert "raised ValueError: xxx" in one.err
        assert " characters cut ...]" in one.err
        assert len(one.err) < 60_000
