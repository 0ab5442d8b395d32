"""Where output goes: by global rank, by node, whole lines, and never over what is there."""

import os
import socket
import subprocess
import sys
import time

import own_words
import pytest

from resilin.testing.patience import PATIENCE_S

pytestmark = pytest.mark.multiproc

SAYS = "import os, sys; os.write(1, f\"out {os.environ['RANK']}\\n\".encode())\n"
WAITS = "import time; time.sleep(0.3)\n"  # so that no node has left before the other has come


def start(*args, **env):
    command = [sys.executable, "-m", "resilin.launcher.elastic_run", *map(str, args)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, env={**os.environ, **env}, **pipes)


def nodes(count, folder, *args):
    """Runs on `count` nodes that meet in a folder; each has logs of its own. What they print, by node rank."""
    meeting = ["--nnodes", count, "--rdzv-backend", "file", "--rdzv-endpoint", folder / "meeting"]
    runs = [start(*meeting, "--node-rank", n, "--log-dir", folder / f"logs{n}", *args) for n in range(count)]
    ends = [run.communicate(timeout=PATIENCE_S) for run in runs]
    assert [run.returncode for run in runs] == [0] * count, ends
    return [out for out, _ in ends]


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "train.py"
        path.write_text(text)
        return path

    return write


def test_a_map_of_global_ranks_redirects_those_whatever_node_they_are_on(script, tmp_path):
    flags = ["--nproc-per-node", 2, "--log-ranks", "global", "--redirects", "2:1"]
    first, second = nodes(2, tmp_path, *flags, script(SAYS + WAITS))
    assert sorted(first.splitlines()) == ["out 0", "out 1"]
    assert second == "out 3\n"
    (kept,) = tmp_path.rglob("stdout.log")
    assert kept.read_text() == "out 2\n"
    assert kept.relative_to(tmp_path).parts[0] == "logs1"


def test_output_of_chosen_global_ranks_reaches_the_terminal_on_their_nodes_alone(script, tmp_path):
    flags = ["--nproc-per-node", 2, "--ranks-filter", "0,3", "--tee", 1]
    first, second = nodes(2, tmp_path, *flags, script(SAYS + WAITS))
    assert (first, second) == ("[default0]:out 0\n", "[default1]:out 3\n")
    texts = sorted(path.read_text() for path in tmp_path.rglob("stdout.log"))
    assert texts == ["out 0\n", "out 1\n", "out 2\n", "out 3\n"]


def test_a_prefix_may_name_the_node_and_may_come_from_torchruns_variable(script, tmp_path):
    program = script(SAYS)
    template = "${hostname} ${role_name} ${rank}: "
    env = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": template}
    run = start("--tee", 1, "--role", "trainer", program, **env)
    assert run.communicate(timeout=PATIENCE_S)[0] == f"{socket.gethostname()} trainer 0: out 0\n"
    run = start("--tee", 1, "--log-line-prefix-template", "${rank}|", program, **env)
    assert run.communicate(timeout=PATIENCE_S)[0] == "0|out 0\n"


def test_every_attempt_and_every_run_of_the_same_job_keeps_its_logs(script, tmp_path):
    program = script(
        "import os, sys; attempt = os.environ['TORCHELASTIC_RESTART_COUNT']; print('attempt', attempt, sys.argv[1])\n"
        "sys.exit(0 if attempt == '2' else 1)\n"
    )
    flags = ["--rdzv-id", "job", "--log-dir", tmp_path / "logs", "--redirects", 3, "--max-restarts", 2, program]
    for word in ("one", "two"):
        run = start(*flags, word)
        run.communicate(timeout=PATIENCE_S)
        assert run.returncode == 0
    folders = sorted((tmp_path / "logs").iterdir())
    assert len(folders) == 2
    texts = {path.read_text() for path in (tmp_path / "logs").rglob("stdout.log")}
    assert texts == {f"attempt {n} {word}\n" for n in range(3) for word in ("one", "two")}
    for folder in folders:
        assert sorted(path.name for path in folder.iterdir()) == ["attempt_0", "attempt_1", "attempt_2"]


def test_lines_of_teed_ranks_do_not_mix_however_they_are_written(script):
    program = script(
        "import os\n"
        "for number in range(300):\n"
        "    word = f\"{os.environ['RANK']}-{number};\".encode()\n"
        "    for part in (word, word * 20, b'end', b'\\n'):\n"
        "        os.write(1, part)\n"
    )
    run = start("--nproc-per-node", 3, "--tee", 1, program)
    lines = run.communicate(timeout=PATIENCE_S)[0].splitlines()
    expected = {f"[default{rank}]:" + f"{rank}-{n};" * 21 + "end" for rank in range(3) for n in range(300)}
    assert set(lines) == expected
    assert len(lines) == 900


LOSES_ITS_LOGS = """
import os, pathlib, shutil
shutil.rmtree(pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"]).parents[2])
raise ValueError("the cause")
"""


def test_a_report_that_cannot_be_kept_is_told_all_the_same(script, tmp_path):
    run = start("--redirects", 3, "--log-dir", tmp_path / "logs", script(LOSES_ITS_LOGS))
    _, err = run.communicate(timeout=PATIENCE_S)
    first, *rest = own_words.of(err).splitlines()
    assert first.startswith("elastic-run: job failed: rank 0 ")
    assert [line for line in rest if line.startswith("  this report is not kept: ")]
    assert run.returncode == 1


def test_a_reader_that_pauses_at_the_end_of_the_job_gets_all_of_it(script):
    program = script("import os; os.write(1, b''.join(b'%06d\\n' % n for n in range(40_000)))")
    run = start("--tee", 1, program)
    time.sleep(3.0)  # it has ended long before; a pipe takes 64 KiB
    out, err = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 0, err
    assert out.splitlines() == [f"[default0]:{n:06d}" for n in range(40_000)]
