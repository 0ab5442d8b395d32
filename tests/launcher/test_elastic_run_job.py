"""What workers find in their environment, where their output goes, and how elastic-run ends."""

import json
import os
import re
import socket
import subprocess
import sys

import own_words
import pytest

from resilin.testing import ports
from resilin.testing.patience import PATIENCE_S

pytestmark = pytest.mark.multiproc

# What a script written for torchrun relies on, without torch: variables, and a meeting at MASTER_ADDR:MASTER_PORT.
MEETS = """
import json, os, socket, sys
names = '''LOCAL_RANK RANK GROUP_RANK ROLE_RANK ROLE_NAME LOCAL_WORLD_SIZE WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE
MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID
TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_ERROR_FILE OMP_NUM_THREADS OPENBLAS_NUM_THREADS
TORCH_NCCL_ASYNC_ERROR_HANDLING RESILIN_CONTROL_FD RESILIN_SECRET RESILIN_JOB RESILIN_GENERATION'''.split()
found = {name: os.environ[name] for name in names}
rank, size = int(found["RANK"]), int(found["WORLD_SIZE"])
address = (found["MASTER_ADDR"], int(found["MASTER_PORT"]))
if rank == 0:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(address)
    server.listen()
    for _ in range(size - 1):
        server.accept()[0].sendall(b"hello")
else:
    while True:
        try:
            peer = socket.create_connection(address, 10)
            break
        except ConnectionRefusedError:
            pass
    assert peer.recv(5) == b"hello"
os.write(1, json.dumps(found).encode() + b"\\n")  # one write: lines of several ranks must not mix
"""


def run(*args, timeout_s=PATIENCE_S, **env):
    command = [sys.executable, "-m", "resilin.launcher.elastic_run", *map(str, args)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, env={**os.environ, **env}, check=False
    )
    done.stderr = own_words.of(done.stderr)
    return done


@pytest.fixture
def script(tmp_path):
    def write(text, name="train.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_a_script_written_for_torchrun_finds_its_variables_and_its_master(script):
    done = run("--standalone", "--nproc-per-node", 3, "--max-restarts", 2, "--role", "trainer", script(MEETS))
    assert done.returncode == 0, done.stderr
    found = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda one: int(one["RANK"]))
    for rank, one in enumerate(found):
        expected = {
            "RANK": rank, "LOCAL_RANK": rank, "ROLE_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": 3,
            "LOCAL_WORLD_SIZE": 3, "ROLE_WORLD_SIZE": 3, "GROUP_WORLD_SIZE": 1, "ROLE_NAME": "trainer",
            "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 2,
            "TORCHELASTIC_USE_AGENT_STORE": "False", "OMP_NUM_THREADS": 1, "OPENBLAS_NUM_THREADS": 1,
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": 1, "RESILIN_GENERATION": 1,
        }  # fmt: skip
        assert {name: one[name] for name in expected} == {name: str(value) for name, value in expected.items()}
        assert one["RESILIN_JOB"] == one["TORCHELASTIC_RUN_ID"]
    assert len({one["MASTER_PORT"] for one in found}) == 1


def test_omp_num_threads_of_the_user_is_kept_and_one_worker_may_use_all_cores(script):
    program = script("import os; os.write(1, f\"{os.environ.get('OMP_NUM_THREADS')}\\n\".encode())")
    assert run("--nproc-per-node", 2, program, OMP_NUM_THREADS="3").stdout == "3\n3\n"
    assert run(program, OMP_NUM_THREADS="").stdout == "\n"


def test_the_master_port_can_be_chosen_and_is_refused_when_in_use(script):
    program = script("import os; print(os.environ['MASTER_PORT'])")
    with ports.held() as (port,):
        with socket.create_server(("127.0.0.1", port)):
            refused = run("--master-port", port, program)
        assert refused.returncode == 3
        assert f"--master-port {port} is in use" in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
        assert run("--master-port", port, program).stdout.strip() == str(port)


def test_a_port_that_something_else_listens_on_is_named_with_how_to_find_out_what(script):
    with ports.held() as (port,), socket.create_server(("127.0.0.1", port)):
        flags = ["--nnodes", 2, "--rdzv-endpoint", f"localhost:{port}", "--rdzv-conf", "read_timeout=1"]
        done = run(*flags, script("pass"))
    assert done.returncode == 3
    assert f"localhost:{port} did not answer" in done.stderr
    assert f"the port is taken on this host: `ss -ltnp sport = :{port}` shows by whom" in done.stderr


def test_the_held_master_port_is_nobody_elses_and_rank_0s_at_both_kinds_of_addresses(script):
    program = script(
        "import errno, os, socket\n"
        "port = int(os.environ['MASTER_PORT'])\n"
        "for family, any_address in ((socket.AF_INET6, '::'), (socket.AF_INET, '')):\n"
        "    try:\n"
        "        other = socket.socket(family)\n"
        "        other.bind((any_address, port))\n"
        "        raise SystemExit(f'{family} is not held')\n"
        "    except OSError as error:\n"
        "        assert error.errno in (errno.EADDRINUSE, errno.EAFNOSUPPORT), error\n"
        "    with socket.socket(family) as own:\n"
        "        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        "        own.bind((any_address, port))\n"
        "        own.listen()\n"
    )
    done = run(program)
    assert done.returncode == 0, done.stderr


def test_modules_and_commands_run_too(script, tmp_path):
    script("import sys; print(sys.argv[1:], __name__)", "amodule.py")
    as_module = subprocess.run(
        [sys.executable, "-m", "resilin.launcher.elastic_run", "-m", "amodule", "--x"],
        capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert as_module.stdout == "['--x'] __main__\n", as_module.stderr
    assert run("--no-python", "sh", "-c", "echo rank $RANK").stdout == "rank 0\n"


def test_redirected_output_lies_in_a_folder_per_attempt_and_rank(script, tmp_path):
    program = script(
        "import os, sys; print('out', os.environ['RANK']); print('err', os.environ['RANK'], file=sys.stderr)"
    )
    done = run("--nproc-per-node", 2, "--rdzv-id", "myjob", "--log-dir", tmp_path / "logs", "-r", "3", program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (folder,) = (tmp_path / "logs").iterdir()
    assert folder.name.startswith("myjob_")
    texts = {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*.log")}
    assert texts == {
        f"attempt_0/{rank}/{name}.log": f"{word} {rank}\n"
        for rank in (0, 1)
        for name, word in (("stdout", "out"), ("stderr", "err"))
    }


def test_teed_output_is_prefixed_by_line_and_kept(script, tmp_path):
    program = script("import os; print('one\\ntwo', flush=True); print('no end', end='')")
    done = run("--nproc-per-node", 2, "--log-dir", tmp_path / "logs", "-t", "0:1,1:0", program)
    assert done.returncode == 0
    assert re.findall(r"\[default\d\]:\w+", done.stdout) == ["[default0]:one", "[default0]:two", "[default0]:no"]
    assert done.stdout.count("one") == 2, "rank 1 writes to the terminal itself"
    (kept,) = (tmp_path / "logs").rglob("0/stdout.log")
    assert kept.read_text() == "one\ntwo\nno end"
    template = run("-t", "3", "--log-line-prefix-template", "<${role_name}/${rank}/${local_rank}> ", program)
    assert template.stdout.splitlines()[0] == "<default/0/0> one"


def test_lines_with_chosen_texts_are_kept_for_all_ranks_in_one_file(script, tmp_path):
    program = script(
        "import os, sys; print('loss 1\\nother\\nacc, 2', flush=True); print('loss', file=sys.stderr, flush=True)"
    )
    flags = ["--log-dir", tmp_path / "logs", "-t", "3", "--duplicate-stdout-filters", "loss,acc,,"]
    done = run("--nproc-per-node", 2, *flags, program)
    assert done.returncode == 0, done.stderr
    (kept,) = (tmp_path / "logs").rglob("filtered_*.log")
    assert kept.name == "filtered_stdout.log"
    assert kept.parent.name == "attempt_0"
    assert sorted(kept.read_text().splitlines()) == [
        "[default0]:acc, 2", "[default0]:loss 1", "[default1]:acc, 2", "[default1]:loss 1",
    ]  # fmt: skip
    assert done.stdout.count("other") == 2, "the terminal has all of them"


def test_a_worker_with_a_virtual_local_rank_sees_one_device(script):
    program = script(
        "import os\n"
        "words = (os.environ[name] for name in ('RANK', 'LOCAL_RANK', 'CUDA_VISIBLE_DEVICES'))\n"
        "os.write(1, (' '.join(words) + '\\n').encode())"
    )
    flags = ["--nproc-per-node", 2, "--virtual-local-rank", program]
    assert sorted(run(*flags, CUDA_VISIBLE_DEVICES="6, 3").stdout.splitlines()) == ["0 0 6", "1 0 3"]
    program = script(
        "import os\n"
        "from resilin import elastic\n"
        "train = elastic.run(lambda state: os.write(1, f'{elastic.world().local_rank}\\n'.encode()))\n"
        "train(elastic.State(total=0))\n"
    )
    assert run(*flags).stdout == "0\n0\n"


def test_only_chosen_ranks_reach_the_terminal(script):
    program = script("import os; print('rank', os.environ['RANK'])")
    assert run("--nproc-per-node", 3, "--local-ranks-filter", "1", program).stdout == "rank 1\n"


BAD = {
    "no program": ([], 2, "required: PROGRAM "),
    "wrong flag": (["--no-such-flag", "x.py"], 2, "--no-such-flag"),
    "no script": (["/no/such/script.py"], 2, "/no/such/script.py"),
    "no answer": (
        ["--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:9", "--rdzv-conf", "is_host=0,read_timeout=0.5", "-m", "this"],
        3,
        r"127\.0\.0\.1:9 did not answer within 0\.5 s",
    ),
    "no other node": (
        [
            "--quiet",  # else it says meanwhile whom it waits for
            "--nnodes",
            "2:4",
            "--rdzv-backend",
            "file",
            "--rdzv-endpoint",
            "FOLDER",
            "--rdzv-conf",
            "join_timeout=0.3",
            "-m",
            "this",
        ],
        4,
        "after 0.3 s: 1 of at least 2 nodes",
    ),
    "no secret": (
        ["--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:9", "--local-addr", "192.0.2.1", "-m", "this"],
        5,
        "secret",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_line_with_its_own_exit_code(name, tmp_path):
    argv, code, says = BAD[name]
    done = run(*[str(tmp_path / "meet") if word == "FOLDER" else word for word in argv], RESILIN_SECRET="")
    assert done.returncode == code
    errors = [line for line in done.stderr.splitlines() if not line.startswith("elastic-run: waiting for")]
    assert len(errors) == 1
    assert re.search(says, done.stderr)
    assert done.stdout == ""


def test_an_error_nobody_expected_is_one_line_and_exit_code_6(script):
    code = """
import sys
from resilin.launcher import elastic_run, store_bootstrap
def broken(*args):
    raise KeyError("lost\\nhere")
store_bootstrap.open_store = broken
sys.exit(elastic_run.main(sys.argv[1:]))
"""
    command = [sys.executable, "-c", code, str(script("pass"))]
    for level, lines in (("WARNING", 1), ("DEBUG", None)):
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env={**os.environ, "LOGLEVEL": level},
            check=False,
        )
        assert done.returncode == 6
        assert "elastic-run: internal error: KeyError" in done.stderr
        assert lines in (None, len(done.stderr.splitlines()))
        assert ("Traceback" in done.stderr) == (level == "DEBUG")


def test_ctrl_c_while_the_launcher_is_imported_ends_it_without_a_word():
    code = """
import importlib, os, signal
from resilin.launcher import entry
importlib.import_module = lambda name: os.kill(os.getpid(), signal.SIGINT)
raise SystemExit(entry.elastic_run())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_unknown_log_level_is_wrong_usage(script):
    done = run(script("pass"), LOGLEVEL="LOUD")
    assert done.returncode == 2
    assert "LOGLEVEL" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_script_that_raises_gives_its_own_traceback_and_one_line_of_ours(script):
    done = run(script("raise KeyError('lost')"))
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.count("job failed: rank 0 (host ") == 1
    assert "resilin" not in done.stderr.replace("elastic-run", "").replace(str(script), ""), "no frame of ours"


def test_quiet_says_nothing_about_restarts(script):
    program = script("import os, sys; sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')")
    done = run("-q", "--max-restarts", 1, program)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_launcher_loads_neither_numpy_nor_grpc():
    code = (
        "import sys, resilin.launcher.elastic_run, resilin.launcher.main\n"
        "print([name for name in ('numpy', 'grpc', 'resilin.core') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout == "[]\n"
