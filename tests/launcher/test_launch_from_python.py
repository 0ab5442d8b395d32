"""`elastic_launch`: workers that call a function of the program that starts them."""

import os
import subprocess
import sys

import pytest

from resilin.errors import ChildFailedError, UsageError
from resilin.launcher.api import LaunchConfig, elastic_launch, launch_agent
from resilin.testing.patience import PATIENCE_S

pytestmark = pytest.mark.multiproc


def one_node(**options):
    return LaunchConfig(min_nodes=1, max_nodes=1, **{"nproc_per_node": 2, "max_restarts": 0, **options})


def place(word, number=0):
    return word, number, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["ROLE_NAME"]


def fail(rank):
    if os.environ["RANK"] == str(rank):
        raise ValueError("no such batch")


def second_time():
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("the first time")
    return os.environ["TORCHELASTIC_RESTART_COUNT"]


def test_every_workers_return_value_comes_back_by_its_rank():
    found = elastic_launch(one_node(), place)("word", 7)
    assert found == {rank: ("word", 7, rank, 2, "default_role") for rank in (0, 1)}


def test_workers_that_fail_for_good_raise_their_own_traceback_here():
    with pytest.raises(ChildFailedError, match=r"rank 1 .* raised ValueError: no such batch") as caught:
        elastic_launch(one_node(), fail)(1)
    (first,) = caught.value.failures
    assert (first.rank, first.type) == (1, "ValueError")
    assert "in fail" in str(caught.value)


def test_a_restarted_workers_last_value_counts(tmp_path):
    found = launch_agent(one_node(max_restarts=1, nproc_per_node=1, log_dir=str(tmp_path)), second_time, [])
    assert found == {0: "1"}
    assert len(list(tmp_path.rglob("attempt_*"))) == 2


def test_a_program_gets_its_arguments_and_returns_nothing(tmp_path):
    assert elastic_launch(one_node(), "/bin/sh")("-c", f'echo "$RANK" > "{tmp_path}/$RANK"') == {}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_a_function_that_has_no_name_is_refused_before_anything_starts():
    with pytest.raises(UsageError, match="cannot be told of <function"):
        elastic_launch(one_node(), lambda: None)()


def test_a_wrong_option_is_the_error_that_elastic_run_has_for_it(capfd):
    with pytest.raises(UsageError, match="exit code 2"):
        elastic_launch(one_node(rdzv_backend="zookeeper", rdzv_endpoint="x"), place)("")
    assert "zookeeper" in capfd.readouterr().err


def test_a_function_of_the_main_module_is_found_in_the_workers(tmp_path):
    (tmp_path / "main.py").write_text(
        "from resilin.launcher.api import LaunchConfig, elastic_launch\n"
        "def twice(number): return 2 * number\n"
        "if __name__ == '__main__':\n"
        "    print(elastic_launch(LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2), twice)(21))\n"
    )
    done = subprocess.run(
        [sys.executable, tmp_path / "main.py"], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.stdout == "{0: 42, 1: 42}\n", done.stderr


def test_a_program_runs_a_command_line_by_pytorchs_function(tmp_path):
    (tmp_path / "main.py").write_text(
        "from resilin.distributed.run import main\n"
        "main(['--standalone', '--nproc-per-node', '2', '--no-python', '/bin/sh', '-c', 'echo $RANK'])\n"
        "print('went on', flush=True)\n"
        "main(['--standalone', '--no-python', '/bin/sh', '-c', 'exit 3'])\n"
    )
    done = subprocess.run(
        [sys.executable, tmp_path / "main.py"], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert sorted(done.stdout.splitlines()) == ["0", "1", "went on"], done.stderr
    assert done.returncode == 1
    assert "exited with code 3" in done.stderr


def test_record_puts_what_is_raised_into_the_report_also_when_somebody_catches_it(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(
        "import os, sys\n"
        "from resilin.elastic import record\n"
        "@record\n"
        "def main():\n"
        "    raise ValueError('from main')\n"
        "try:\n"
        "    main()\n"
        "except ValueError:\n"
        "    sys.exit(3)\n"
    )
    command = [sys.executable, "-m", "resilin.launcher.elastic_run", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1
    assert "raised ValueError: from main" in done.stderr
