"""What elastic-run takes from Slurm's and MPI's environment variables."""

import pytest

from resilin.errors import UsageError
from resilin.launcher import addresses, arguments, plan, scheduler_env
from resilin.testing.job_secret import SECRET

STEP = {
    "SLURM_JOB_ID": "4217", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "node[01-03,07]", "SLURM_NODEID": "2",
    "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "OMPI_MCA_ess_base_jobid": "12",
}  # fmt: skip
HYDRA = {"PMI_SIZE": "2", "PMI_RANK": "1", "MPI_LOCALNRANKS": "1"}


def filled(variables, *argv):
    args = arguments.parse([*argv, "train.py"])
    return args, scheduler_env.fill(args, variables)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("login", ["login"]),
        ("node[01-03,07]", ["node01", "node02", "node03", "node07"]),
        ("a[9-11]", ["a9", "a10", "a11"]),
        ("a,b[1,3-4],c", ["a", "b1", "b3", "b4", "c"]),
        ("r[1-2]n[01-02]-ib", ["r1n01-ib", "r1n02-ib", "r2n01-ib", "r2n02-ib"]),
    ],
)
def test_slurms_host_lists_are_expanded(text, hosts):
    assert scheduler_env.expand(text) == hosts


@pytest.mark.parametrize(
    "text", ["node[01-03", "node01-03]", "node[a-b]", "node[]", "n[1-999999999]", "n[1-999][1-999]"]
)
def test_a_host_list_that_makes_no_sense_is_refused(text):
    with pytest.raises(UsageError, match="host list"):
        scheduler_env.expand(text)


def test_under_srun_nothing_needs_to_be_said():
    args, line = filled(STEP)
    assert (args.nnodes, args.node_rank, args.rdzv_id) == ("4", 2, "4217.0")
    assert (args.rdzv_endpoint, args.rdzv_conf) == ("node01:24217", "")
    assert line == "Slurm job 4217, step 0: node 2 of 4, job name 4217.0, meeting at node01:24217"
    first, _ = filled({**STEP, "SLURM_NODEID": "0"})
    assert (first.rdzv_endpoint, first.rdzv_conf) == ("node01:24217", "is_host=true")


def test_what_the_user_chose_wins_wherever_it_was_chosen(monkeypatch):
    monkeypatch.setenv("PET_RDZV_ID", "mine")
    args, _ = filled(STEP, "--nnodes", "2:8", "--rdzv-endpoint", "other:1", "--node-rank", "5")
    assert (args.nnodes, args.rdzv_endpoint, args.node_rank, args.rdzv_id) == ("2:8", "other:1", 5, "mine")
    args, _ = filled(STEP, "--rdzv-backend", "etcd", "--rdzv-endpoint", "e:2379")
    assert (args.nnodes, args.rdzv_endpoint) == ("4", "e:2379")
    args, _ = filled(STEP, "--rdzv-backend", "static")
    assert (args.master_addr, args.node_rank, args.rdzv_endpoint) == ("node01", 2, "")
    args, _ = filled(STEP, "--master-addr", "node03")
    assert (args.master_addr, args.rdzv_endpoint) == ("node03", "")


def test_standalone_is_for_this_node_alone_wherever_it_runs():
    args, line = filled(STEP, "--standalone")
    assert (args.nnodes, args.rdzv_id, line) == ("1:1", "none", "")


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {name: value for name, value in STEP.items() if name != "SLURM_STEP_ID"},  # a batch script
        {**STEP, **HYDRA, "SLURM_PTY_PORT": "1"},  # somebody's shell
        {"SLURM_JOB_ID": "1"},
    ],
)
def test_a_batch_script_or_a_shell_is_no_launch_on_each_node(variables):
    args, line = filled(variables)
    assert (args.nnodes, line) == ("1:1", "")


def test_several_processes_on_a_node_are_refused_with_what_to_do_instead():
    with pytest.raises(UsageError, match="srun --ntasks-per-node=1 and --nproc-per-node 8"):
        filled({**STEP, "SLURM_STEP_NUM_TASKS": "32"})
    args, _ = filled({**STEP, "SLURM_STEP_NUM_TASKS": "32"}, "--nnodes", "32")
    assert args.nnodes == "32"


def test_jobs_of_a_shared_node_meet_at_different_ports():
    ports = {scheduler_env.detect({**STEP, "SLURM_JOB_ID": str(job)}).port for job in (1, 2, 99999, 4217, 14217)}
    assert len(ports) == 4
    assert all(20000 <= port < 30000 for port in ports)


@pytest.mark.parametrize(
    ("variables", "who", "nodes"),
    [(OPEN_MPI, "Open MPI's mpirun", "3"), (HYDRA, r"mpiexec \(PMI\)", "2")],
)
def test_mpi_tells_the_number_of_nodes_and_this_ones_but_no_host(variables, who, nodes):
    with pytest.raises(UsageError, match=f"{who} does not tell its hosts: expected --rdzv-endpoint"):
        filled(variables)
    args, line = filled(variables, "--rdzv-endpoint", "node0")
    assert (args.nnodes, args.node_rank) == (nodes, 1)
    assert "node 1 of" in line
    args, _ = filled(variables, "--master-addr", "node0")
    assert (args.node_rank, args.rdzv_endpoint) == (1, "")


def test_a_variable_that_is_no_number_is_named():
    with pytest.raises(UsageError, match="SLURM_NODEID: expected a number, got 'x'"):
        filled({**STEP, "SLURM_NODEID": "x"})


def test_where_a_hosts_own_name_stands_for_loopback_it_serves_where_others_look(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("pass")
    monkeypatch.setattr(addresses, "addresses_of", lambda host: ["127.0.1.1"])
    monkeypatch.setattr(addresses, "outward", lambda: "192.0.2.7")
    monkeypatch.setattr(addresses, "is_own", lambda host: True)
    monkeypatch.setattr(plan, "address_towards", lambda host, port: host)
    argv = ["--nnodes", "2", "--rdzv-endpoint", "myname:5", str(tmp_path / "train.py")]
    assert plan.make(arguments.parse(["--local-addr", "127.0.0.1", *argv])).meeting.endpoint == "myname:5"
    monkeypatch.setenv("RESILIN_SECRET", SECRET)
    what = plan.make(arguments.parse(argv))
    assert (what.meeting.endpoint, what.address) == ("192.0.2.7:5", "192.0.2.7")
    argv[3] = "localhost:5"
    assert plan.make(arguments.parse(argv)).meeting.endpoint == "localhost:5"
