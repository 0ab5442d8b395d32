"""Flags from a TOML file, and --dry-run."""

import subprocess
import sys

import pytest

from resilin.errors import UsageError
from resilin.launcher import arguments, dry_run, plan
from resilin.testing.job_secret import SECRET
from resilin.testing.patience import PATIENCE_S


@pytest.fixture
def config(tmp_path):
    def write(text):
        path = tmp_path / "job.toml"
        path.write_text(text)
        return ["--config", str(path)]

    return write


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("pass")
    return str(path)


def test_a_flag_wins_over_the_environment_which_wins_over_the_file_which_wins_over_the_default(config, monkeypatch):
    file = config('max-restarts = 1\nnnodes = "2"\nrole = "a"\nstandalone = true\n')
    monkeypatch.setenv("PET_MAX_RESTARTS", "2")
    monkeypatch.setenv("PET_NNODES", "3")
    args = arguments.parse([*file, "--nnodes", "4", "train.py", "--role", "its own"])
    assert (args.nnodes, args.max_restarts, args.role, args.standalone) == ("4", 2, "a", True)
    assert args.start_method == "auto"
    assert args.given == {"config", "nnodes", "max_restarts", "role", "standalone"}


def test_lists_and_tables_are_what_the_flag_takes(config, script):
    text = (
        "nproc_per_node = 4\nlocal-ranks-filter = [0, 2]\nredirects = {0 = 1, 1 = 3}\nrdzv-conf = {join_timeout = 7}\n"
    )
    what = plan.make(arguments.parse([*config(text), script]))
    assert (what.workers, what.shown_ranks) == (4, {0, 2})
    assert what.redirects.by_rank == {0: 1, 1: 3}
    assert what.meeting.join_timeout_s == 7


def test_the_file_may_be_named_by_the_environment(config, monkeypatch):
    monkeypatch.setenv("RESILIN_CONFIG", config("max-restarts = 5")[1])
    assert arguments.parse(["x"]).max_restarts == 5


def test_a_config_option_of_the_program_is_the_programs():
    args = arguments.parse(["train.py", "--config", "/no/such/file"])
    assert (args.config, args.training_script_args) == (None, ["--config", "/no/such/file"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max-restart = 1", r"job\.toml: max-restart: no flag of elastic-run; did you mean max-restarts\?"),
        ("qwertyuiop = 1", "elastic-run --help lists them"),
        ('config = "other.toml"', "config: no flag"),
        ("= 1", "expected TOML"),
        ("role = {a = 1}", "role: expected a text"),
        ("log-dir = 1979-05-27", "log-dir: expected a text"),
        ("max-restarts = 1\nmax_restarts = 2", "twice"),
    ],
)
def test_a_file_that_says_nothing_known_is_one_error_that_names_the_place(text, says, config):
    with pytest.raises(UsageError, match=says):
        arguments.parse([*config(text), "x"])


def test_a_file_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match="--config /no/such/file: cannot be read: No such file"):
        arguments.parse(["--config", "/no/such/file", "x"])


def test_a_wrong_value_names_the_file_and_the_key(config, capsys):
    with pytest.raises(SystemExit) as ended:
        arguments.parse([*config('max-restarts = "many"'), "x"])
    assert ended.value.code == 2
    assert "job.toml: max-restarts: expected an integer, got 'many'" in capsys.readouterr().err


def test_a_dry_run_tells_each_workers_command_and_environment_and_no_secret(script, tmp_path, monkeypatch):
    monkeypatch.setenv("RESILIN_SECRET", SECRET)
    flags = ["--nnodes", "2:4", "--nproc-per-node", "2", "--node-rank", "1", "--rdzv-endpoint", "localhost:4711"]
    args = arguments.parse([*flags, "--dry-run", "--log-dir", str(tmp_path / "logs"), script, "--lr", "a b"])
    lines = list(dry_run.lines(plan.make(args)))
    assert not (tmp_path / "logs").exists()
    assert "nodes     2 to 4, 2 workers on this one" in lines
    assert "meeting   embedded localhost:4711, served by this node, unless somebody serves it already" in lines
    assert f"worker 1: {sys.executable} -u {script} --lr 'a b'" in lines
    assert [line for line in lines if line.startswith("  RANK=")] == ["  RANK=2", "  RANK=3"]
    assert "  WORLD_SIZE=4" in lines
    assert "  RESILIN_SECRET=(hidden)" in lines
    assert SECRET not in "".join(lines)


def test_a_dry_run_starts_nothing_and_ends_with_0(tmp_path):
    (tmp_path / "train.py").write_text("raise SystemExit('ran')")
    command = [sys.executable, "-m", "resilin.launcher.elastic_run", "--dry-run", "--event-log", "events", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True, cwd=tmp_path)
    assert "worker 0: " in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
