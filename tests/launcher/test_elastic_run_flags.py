"""The command line of elastic-run: torchrun's flags, their defaults, and their environment variables."""

import subprocess

import pytest

from resilin.errors import SecretRequired, UsageError
from resilin.launcher import addresses, arguments, elastic_run, plan
from resilin.testing.job_secret import OTHER_SECRET, SECRET
from resilin.testing.patience import PATIENCE_S

# flag -> default, for every flag of torchrun that has a meaning here; frozen, because scripts rely on it
TORCHRUN = {
    "nnodes": "1:1",
    "nproc_per_node": "1",
    "rdzv_endpoint": "",
    "rdzv_id": "none",
    "rdzv_conf": "",
    "standalone": False,
    "max_restarts": 0,
    "monitor_interval": 0.1,
    "role": "default",
    "module": False,
    "no_python": False,
    "run_path": False,
    "log_dir": None,
    "redirects": "0",
    "tee": "0",
    "log_line_prefix_template": "",
    "local_ranks_filter": "",
    "master_addr": "127.0.0.1",
    "master_port": None,
    "local_addr": None,
    "duplicate_stdout_filters": "",  # torchrun: the list of what is between the commas
    "duplicate_stderr_filters": "",
    "virtual_local_rank": False,
    "event_log_handler": "null",
    "logs_specs": "default",  # torchrun: None
    "numa_binding": "none",  # torchrun: None
    "signals_to_handle": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    "shutdown_timeout": None,
}
OURS = {
    "rdzv_backend": "",  # torchrun: static; ours follows from the other flags
    "node_rank": -1,  # torchrun: 0; only static jobs have ranks for nodes
    "as_torch": False,
    "secret_file": None,
    "event_log": None,
    "quiet": False,
    "verbose": False,
    "config": None,
    "health_port": 0,
    "termination_message": None,
    "max_step_failures": 3,
    "ranks_filter": "",
    "log_ranks": "local",
    "hang_timeout": "auto",
    "dry_run": False,
    "start_method": "auto",  # torchrun: spawn
}


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("pass")
    return str(path)


def made(*argv):
    return plan.make(arguments.parse([str(arg) for arg in argv]))


def test_flags_and_defaults_are_frozen():
    args = vars(arguments.parse(["train.py"]))
    del args["training_script"], args["training_script_args"]
    assert args.pop("given") == frozenset()
    assert args == TORCHRUN | OURS


def test_dashes_and_underscores_mean_the_same():
    assert arguments.parse(["--nproc_per_node", "3", "x"]).nproc_per_node == "3"
    assert arguments.parse(["--nproc-per-node=3", "x"]).nproc_per_node == "3"


def test_the_scripts_own_options_are_left_alone():
    args = arguments.parse(["--nnodes", "2", "train.py", "--nnodes", "7", "-m", "--", "x"])
    assert (args.nnodes, args.module) == ("2", False)
    assert args.training_script_args == ["--nnodes", "7", "-m", "--", "x"]


def test_every_flag_has_an_environment_variable_and_ours_wins(monkeypatch):
    monkeypatch.setenv("PET_NPROC_PER_NODE", "4")
    monkeypatch.setenv("PET_MAX_RESTARTS", "5")
    monkeypatch.setenv("RESILIN_MAX_RESTARTS", "6")
    monkeypatch.setenv("PET_STANDALONE", "1")
    args = arguments.parse(["x"])
    assert (args.nproc_per_node, args.max_restarts, args.standalone) == ("4", 6, True)
    assert arguments.parse(["--max-restarts", "1", "x"]).max_restarts == 1


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--nnodes", "0"], "--nnodes"),
        (["--nnodes", "3:2"], "--nnodes"),
        (["--nproc-per-node", "many"], "--nproc-per-node"),
        (["--nproc-per-node", "0"], "--nproc-per-node"),
        (["--nproc-per-node", "99999999999"], "--nproc-per-node"),
        (["--nproc-per-node", "9" * 5000], "--nproc-per-node"),
        (["--local-ranks-filter", "-1"], "--local-ranks-filter"),
        (["--max-restarts", "-1"], "--max-restarts"),
        (["--nnodes", "2"], "--rdzv-endpoint"),
        (["--nnodes", "2", "--standalone"], "--standalone"),
        (["--rdzv-backend", "zookeeper", "--nnodes", "2"], "zookeeper"),
        (["--rdzv-backend", "static", "--nnodes", "2"], "--node-rank"),
        (["--rdzv-endpoint", "localhost:port", "--nnodes", "2"], "HOST:PORT"),
        (["--rdzv-conf", "no_such=1"], "no_such"),
        (["--rdzv-conf", "join_timeout=soon"], "soon"),
        (["--tee", "7"], "--tee"),
        (["--redirects", "0:x"], "--redirects"),
        (["--local-ranks-filter", "a"], "--local-ranks-filter"),
        (["--rdzv-conf", "join_timeout=nan"], "join_timeout"),
        (["--signals-to-handle", "SIGNOPE"], "SIGNOPE"),
        (["--signals-to-handle", "SIGTERM,SIGKILL"], "SIGKILL"),
        (["--shutdown-timeout", "-1"], "--shutdown-timeout"),
        (["--shutdown-timeout", "nan"], "--shutdown-timeout"),
        (["--local-addr", "300.1.1.1"], "--local-addr"),
        (["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"], "localhost:29400"),
        (["--secret-file", "/no/such/file"], "/no/such/file"),
        (["--secret-file", "/proc"], "--secret-file /proc: cannot be read"),
        (["--secret-file", ""], "--secret-file"),
        (["--secret-file", "/dev/zero"], "longer"),
        (["--log-dir", "/proc/nope"], "--log-dir /proc/nope: cannot make this folder"),
        (["--log-dir", "/etc/passwd"], "--log-dir /etc/passwd"),
        (["--event-log", "/proc/nope/x"], "--event-log /proc/nope/x: cannot be written"),
        (["--event-log", "/proc"], "--event-log /proc"),
        (["--master-port", "999999"], "--master-port"),
        (["--master-port", "-1"], "--master-port"),
        (["--nnodes", "2", "--node-rank", "0", "--master-port", "65535"], "--master-port"),
        (["--nnodes", "2", "--node-rank", "2"], "--node-rank: expected 0 to 1"),
        (["--node-rank", "-7"], "--node-rank"),
        (["--rdzv-id", "a/b"], "--rdzv-id"),
        (["--rdzv-id", ""], "--rdzv-id"),
        (["--rdzv-id", "x" * 300], "--rdzv-id"),
        (["--rdzv-id", "a\nb"], "--rdzv-id"),
        (["--rdzv-id", "caf\udce9"], "--rdzv-id"),  # how Python shows an argument that is not UTF-8
        (["--nnodes", "2", "--rdzv-endpoint", "." * 70], "--rdzv-endpoint"),
        (["--nnodes", "2", "--rdzv-endpoint", "h" * 300 + ":1"], "--rdzv-endpoint"),
        (["--rdzv-conf", "user=bob"], "user is for --rdzv-backend etcd"),
        (["--rdzv-conf", "last_call_timeout=nan"], "last_call_timeout"),
        (["--rdzv-conf", "lease_ttl=0"], "lease_ttl"),
        (["--numa-binding", "node"], "--numa-binding node: not available here"),
        (["--logs-specs", "mine"], "--log-dir"),
        (["--event-log-handler", "console"], "--event-log FILE"),
        (["--duplicate-stdout-filters", "loss", "--tee", "3"], "--log-dir"),
        (["--duplicate-stderr-filters", "loss", "--log-dir", "/tmp"], "--tee"),
        (["--local-addr", "192.0.2.7"], "--local-addr 192.0.2.7: expected an address of this node"),
        (["--local-addr", "0.0.0.0"], "--local-addr 0.0.0.0: expected an address of this node"),
        (["--monitor-interval", "-5"], "--monitor-interval: expected at least 0, got -5"),
        (["--monitor-interval", "nan"], "--monitor-interval"),
        (["--max-step-failures", "-1"], "--max-step-failures: expected at least 0"),
        (["--ranks-filter", "0,x"], "--ranks-filter: expected numbers"),
        (["--local-ranks-filter", "7"], "--local-ranks-filter 7: would hide all output, the only local rank is 0"),
        (["--nproc-per-node", "2", "--local-ranks-filter", "2,3"], "the 2 local ranks are 0 to 1"),
    ],
)
def test_a_wrong_flag_is_one_error_that_names_it(argv, says, script):
    with pytest.raises(UsageError, match=says):
        made(*argv, script)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["/no/such/script.py"], "does not exist"),
        (["-m", "no_such_module_here"], "no_such_module_here"),
        (["-m", ""], "module ''"),
        (["-m", ".here"], "module '.here'"),
        (["-m", "__main__.x"], "__main__"),
        (["-m", "os.nosub"], "there is no 'nosub' in 'os'"),
        (["-m", "json.tool.deeper"], "there is no 'deeper' in 'json.tool'"),
        (["-m", "json.no_such"], "there is no 'no_such' in 'json'"),
        (["-m", "json."], "there is no '' in 'json'"),
        (["-m", "json"], "'json' is a package without __main__.py"),
        (["/usr"], "'/usr' is a folder without __main__.py"),
        ([""], "does not exist"),
        (["--no-python", ""], "does not exist"),
        (["--no-python", "/usr"], "not executable"),
        (["--no-python", "no-such-command-here"], "no-such-command-here"),
        (["--no-python", "/etc/passwd"], "not executable"),
        (["--no-python", "-m", "json"], "exclude"),
    ],
)
def test_a_program_that_cannot_run_is_refused_before_anything_starts(argv, says):
    with pytest.raises(UsageError, match=says):
        made(*argv)


def test_a_removed_working_folder_is_named_where_it_is_needed(tmp_path, monkeypatch, capfd):
    (tmp_path / "program.py").write_text("import resilin\nprint('ran')\n")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    (tmp_path / "folder").rmdir()
    meeting = ("--nnodes", "1:2", "--rdzv-backend", "file", "--rdzv-endpoint", "meeting")
    for words in (["program.py"], ["-m", "json.tool"], [*meeting, str(tmp_path / "program.py")]):
        assert elastic_run.main(words) == 2
        assert "current folder, which is not there any more" in capfd.readouterr().err
    assert elastic_run.main(["--standalone", str(tmp_path / "program.py")]) == 0
    assert "ran" in capfd.readouterr().out


@pytest.mark.parametrize("start", ["auto", "spawn"])
def test_a_program_with_a_syntax_error_is_refused_with_its_words(tmp_path, monkeypatch, start):
    (tmp_path / "syn.py").write_text("import resilin\ndef f(:\n")
    monkeypatch.chdir(tmp_path)
    for words in (["syn.py"], ["-m", "syn"]):
        with pytest.raises(UsageError, match=r"SyntaxError: invalid syntax \(syn.py, line 2\): def f\(:"):
            made("--start-method", start, *words)


@pytest.mark.parametrize(
    ("text", "forked"),
    [
        ("import os\nimport resilin\nos.environ['A'] = '1'\n", True),
        ("import os\nif os.environ['A'] == '1': pass\nprint(os.environ['B'])\nimport resilin\n", True),
        ("import os\nos.environ['A'] = '1'\nimport resilin\n", False),
        ("from os import environ\nenviron.setdefault('A', '1')\nfrom resilin import nn\n", False),
        ("import os\nos.environ.update(A='1')\nimport resilin\n", False),
        ("import os\nos.environ |= {'A': '1'}\nimport resilin\n", False),
        ("import os\ndel os.environ['A']\nimport resilin\n", False),
        ("import os\nos.putenv('A', '1')\nimport helper\n", False),
    ],
)
def test_a_program_that_changes_variables_before_it_imports_us_is_executed_afresh(tmp_path, text, forked):
    (tmp_path / "prog.py").write_text(text)
    assert made(str(tmp_path / "prog.py")).program.warm is forked


MODULES = {
    "plain.py": "",
    "package/__init__.py": "raise SystemExit('imported')",
    "package/__main__.py": "",
    "package/inner/deep.py": "",
    "folder/deeper/module.py": "",
    "extended/__init__.py": "__path__ = __import__('pkgutil').extend_path(__path__, __name__)",
    "program/__main__.py": "",
}


@pytest.mark.parametrize("module", ["plain", "package", "package.inner.deep", "folder.deeper.module", "extended.any"])
def test_modules_of_the_current_folder_are_found_without_importing_their_parents(module, tmp_path, monkeypatch):
    for name, text in MODULES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert made("-m", module).program.module
    assert made("program").program.command[-1] == "program"


def test_modules_of_another_interpreter_are_left_to_it(monkeypatch):
    monkeypatch.setenv("PYTHON_EXEC", "/usr/bin/some-python")
    assert made("-m", "only_known_there").program.command == ("/usr/bin/some-python", "-u", "-m", "only_known_there")


@pytest.mark.parametrize(
    ("variable", "text", "says"),
    [
        ("PET_MAX_RESTARTS", "abc", "environment variable PET_MAX_RESTARTS: expected an integer, got 'abc'"),
        ("RESILIN_MONITOR_INTERVAL", "soon", "environment variable RESILIN_MONITOR_INTERVAL: expected a number"),
        ("PET_STANDALONE", "maybe", "environment variable PET_STANDALONE: expected one of 1, true, yes, on, 0, "),
        ("PET_START_METHOD", "abc", "environment variable PET_START_METHOD: expected one of auto, spawn, fork"),
    ],
)
def test_a_wrong_environment_variable_is_one_error_that_names_it(variable, text, says, script, monkeypatch, capsys):
    monkeypatch.setenv(variable, text)
    with pytest.raises(SystemExit) as ended:
        made(script)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_a_flag_makes_a_wrong_environment_variable_harmless(script, monkeypatch):
    monkeypatch.setenv("PET_MAX_RESTARTS", "abc")
    assert made("--max-restarts", "2", script).membership.max_restarts == 2
    monkeypatch.setenv("PET_STANDALONE", "Off")
    assert arguments.parse(["--max-restarts", "1", script]).standalone is False


@pytest.mark.parametrize(
    "flags",
    [
        ["--node-rank", "0", "--master-addr", "192.0.2.1"],
        ["--rdzv-endpoint", "192.0.2.1:5", "--rdzv-conf", "is_host=true"],
    ],
)
def test_a_node_that_is_to_serve_the_store_at_another_hosts_address_is_told_so(flags, script, monkeypatch):
    monkeypatch.setattr(plan, "address_towards", lambda host, port: "127.0.0.1")  # where there is no route
    with pytest.raises(UsageError, match=r"192\.0\.2\.1 is no address of this host: start it on that host"):
        made("--nnodes", "2", *flags, script)


def test_one_node_without_endpoint_needs_nobody_and_has_a_secret_of_its_own(script):
    first, second = made(script), made(script)
    assert first.meeting.backend == "standalone"
    assert first.address == "127.0.0.1"
    assert len(first.job.secret) == 64
    assert first.job.secret != second.job.secret
    assert first.job.name != second.job.name


def test_c10d_is_a_name_of_the_embedded_store(script):
    meeting = made("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost", script).meeting
    assert (meeting.backend, meeting.endpoint) == ("embedded", "localhost:29400")


def test_port_0_means_that_one_node_needs_nobody(script):
    made_plan = made("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", script)
    assert (made_plan.meeting.backend, made_plan.address) == ("standalone", "127.0.0.1")


def test_flags_of_torchrun_that_are_not_available_may_have_their_default(script):
    made("--event-log-handler", "null", "--numa-binding", "none", "--logs-specs", "default", script)


def test_filters_are_separated_by_commas_and_two_commas_are_one(script, tmp_path):
    argv = ["--log-dir", tmp_path, "--tee", "1", "--duplicate-stdout-filters", "loss,a b,x,,y,", script]
    assert made(*argv).filters == {"stdout": ("loss", "a b", "x,y")}


def test_a_worker_without_a_device_is_refused_before_anything_starts(script, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert made("--virtual-local-rank", "--nproc-per-node", "2", script).job.virtual_local_rank
    with pytest.raises(UsageError, match="CUDA_VISIBLE_DEVICES='4,5'"):
        made("--virtual-local-rank", "--nproc-per-node", "3", script)


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion_knows_every_flag(shell, capsys):
    with pytest.raises(SystemExit) as ended:
        arguments.parse(["--print-completion", shell])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    names = (name.replace("_", "-") for name in TORCHRUN | OURS)
    assert [name for name in names if f"{name}" not in text] == []


def test_bash_completes_flags_and_their_choices(capsys):
    with pytest.raises(SystemExit):
        arguments.parse(["--print-completion", "bash"])
    ask = 'COMP_CWORD=${#COMP_WORDS[@]}; ((COMP_CWORD--)); _elastic_run; echo "${COMPREPLY[@]}"'
    text = f"{capsys.readouterr().out}\nCOMP_WORDS=(elastic-run --rdzv-b); {ask}"
    text += f"\nCOMP_WORDS=(elastic-run --start-method f); {ask}"
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout == "--rdzv-backend\nfork forkserver\n"


def test_a_shutdown_timeout_of_0_is_0_and_the_environment_is_second(script, monkeypatch):
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7")
    assert made(script).shutdown_timeout_s == 7
    assert made("--shutdown-timeout", "0", script).shutdown_timeout_s == 0
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "abc")
    with pytest.raises(UsageError, match="TORCH_ELASTIC_SHUTDOWN_TIMEOUT"):
        made(script)


def test_nodes_that_meet_in_a_folder_are_reached_beyond_loopback_if_they_have_a_secret(script, monkeypatch, tmp_path):
    argv = ["--rdzv-backend", "file", "--rdzv-endpoint", tmp_path, script]
    monkeypatch.setattr(addresses, "outward", lambda: "192.0.2.7")
    monkeypatch.setattr(addresses, "is_own", lambda host: True)
    monkeypatch.setenv("RESILIN_SECRET", SECRET)
    assert made("--nnodes", "2", *argv).address == "192.0.2.7"
    assert made("--nnodes", "2", "--local-addr", "192.0.2.8", *argv).address == "192.0.2.8"
    assert made("--nnodes", "1", *argv).address == "127.0.0.1"
    monkeypatch.delenv("RESILIN_SECRET")
    assert made("--nnodes", "2", *argv).address == "127.0.0.1"


def test_without_a_default_route_the_hosts_name_counts_and_without_that_the_user_is_asked(monkeypatch):
    monkeypatch.setattr(addresses, "_ELSEWHERE", ())
    monkeypatch.setattr(addresses, "addresses_of", lambda host: ["127.0.1.1", "192.0.2.9"])
    assert addresses.outward() == "192.0.2.9"
    monkeypatch.setattr(addresses, "addresses_of", lambda host: ["127.0.1.1"])
    with pytest.raises(UsageError, match="--local-addr"):
        addresses.outward()


def test_a_static_job_meets_above_rank_zeros_port(script):
    made_plan = made("--nnodes", "2", "--node-rank", "1", "--master-port", "4000", script)
    assert made_plan.meeting.endpoint == "127.0.0.1:4001"
    assert made_plan.meeting.is_host is False
    assert (made_plan.master_port, made_plan.rank_hint) == (4000, 1)


def test_nothing_listens_beyond_loopback_without_a_secret(script, monkeypatch, tmp_path):
    argv = ["--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:1", "--local-addr", "192.0.2.7", script]
    monkeypatch.setattr(addresses, "is_own", lambda host: True)
    monkeypatch.delenv("RESILIN_SECRET", raising=False)
    with pytest.raises(SecretRequired, match="secret"):
        made(*argv)
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    assert made("--secret-file", tmp_path / "secret", *argv).job.secret == SECRET
    monkeypatch.setenv("RESILIN_SECRET", OTHER_SECRET)
    assert made(*argv).job.secret == OTHER_SECRET


def test_nproc_counts_cpus(script, monkeypatch):
    monkeypatch.setattr(plan, "cpu_count", lambda: 6)
    assert made("--nproc-per-node", "cpu", script).workers == 6


def test_torchruns_rendezvous_keys_are_accepted(script):
    text = "join_timeout=7,last_call_timeout=2,close_timeout=3,keep_alive_interval=1,store_type=tcp,is_host=true"
    made_plan = made("--rdzv-conf", text, "--nnodes", "1:2", "--rdzv-endpoint", "localhost:1", script)
    assert made_plan.meeting.join_timeout_s == 7
    assert made_plan.membership.last_call_s == 2
    assert made_plan.meeting.is_host is True


def test_a_secret_that_is_no_text_is_refused_and_an_open_one_warned_about(script, tmp_path, caplog):
    path = tmp_path / "secret"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="expected text in UTF-8"):
        made("--secret-file", path, script)
    path.write_text(SECRET)
    path.chmod(0o640)
    assert made("--secret-file", path, script).job.secret == SECRET
    assert [record.getMessage() for record in caplog.records] == ["others may read this secret; chmod 600 it"]
    path.chmod(0o600)
    made("--secret-file", path, script)
    assert len(caplog.records) == 1


ETCD = ["--nnodes", "2", "--local-addr", "127.0.0.1", "--rdzv-backend", "etcd", "--rdzv-endpoint"]


def test_an_etcds_password_comes_from_a_file_or_the_environment_before_the_endpoint(script, tmp_path, monkeypatch):
    file = tmp_path / "password"
    file.write_text("p@ss:w?rd\n")
    file.chmod(0o600)
    meeting = made(*ETCD, "h1:1,h2:2?ca=x", "--rdzv-conf", f"user=bob,password_file={file}", script).meeting
    assert (meeting.endpoint, meeting.login.user, meeting.login.password) == ("h1:1,h2:2?ca=x", "bob", "p@ss:w?rd")
    meeting = made(*ETCD, "etcd://bob:hunter2@h1:1", script).meeting
    assert (meeting.endpoint, meeting.login.password) == ("etcd://h1:1", "hunter2")
    monkeypatch.setenv("RESILIN_ETCD_PASSWORD", "from the environment")
    assert made(*ETCD, "etcd://bob@h1:1", script).meeting.login.password == "from the environment"
    assert "from the environment" not in repr(made(*ETCD, "etcd://bob@h1:1", script))


@pytest.mark.parametrize(
    "argv",
    [
        ["--rdzv-backend", "etcd", "--rdzv-endpoint", "etcd://bob:hunter2@no.such.host.invalid:1"],
        ["--rdzv-backend", "etcd", "--rdzv-endpoint", "etcd://bob:hunter2?x@127.0.0.1:port"],
        ["--rdzv-endpoint", "etcd://bob:hunter2@127.0.0.1:1"],
        ["--rdzv-endpoint", "bob:hunter2@127.0.0.1:1"],
    ],
)
def test_no_error_shows_a_password(argv, script):
    with pytest.raises(UsageError, match="--rdzv-endpoint") as caught:
        made("--nnodes", "2", *argv, script)
    assert "hunter2" not in str(caught.value)
