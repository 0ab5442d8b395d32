"""Programs for PyTorch run on resilin as they stand, and so do the processes that they start."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import resilin
from resilin import as_torch

PROGRAM = """
import importlib.metadata, multiprocessing, pickle, subprocess, sys
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

def child(queue):
    import torch
    queue.put((torch.__name__, torch.ones(2).sum().item()))

if __name__ == "__main__":
    assert torch.__name__ == "torch" and sys.argv[1:] == ["--epochs", "2"], sys.argv
    assert importlib.metadata.version("torch") == torch.__version__
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(8, 3), torch.randint(0, 2, (8,)))
    for x, y in DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="spawn"):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    process = spawn.Process(target=child, args=(queue,))
    process.start()
    assert queue.get(timeout=60) == ("torch", 2.0)
    process.join()
    code = "import torch; print(torch.__name__, torch.distributed.is_available())"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "torch True\\n"
    assert pickle.loads(b"ctorch.nn.modules.linear\\nLinear\\n.") is nn.Linear
    print("done", __file__)
"""

RANKS = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 1))
model(torch.randn(8, 4)).sum().backward()
total = torch.ones(1)
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {total.item():.0f}, {sys.argv[1:]}\\n", end="")
dist.destroy_process_group()
"""


def run(*arguments, cwd=None, **options):
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd, **options)


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.slow
def test_a_program_and_the_processes_that_it_starts_run_on_resilin(program):
    done = run("resilin.as_torch", str(program), "--epochs", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"done {program}\n"


def test_a_module_is_run_as_python_runs_it(tmp_path):
    (tmp_path / "module.py").write_text("import sys, torch; print(torch.__name__, sys.argv, __name__, __spec__.name)")
    done = run("resilin.as_torch", "-m", "module", "--epochs", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"torch ['{tmp_path}/module.py', '--epochs', '2'] __main__ module\n"


PICKLES = """
import pickle, sys, torch
class Net(torch.nn.Module):
    pass
print(type(pickle.loads(pickle.dumps(Net()))) is Net, sys.argv, __name__)
"""


def test_a_program_from_standard_input_is_run_as_python_runs_it():
    done = run("resilin.as_torch", "-", "x", input=PICKLES)
    assert (done.returncode, done.stdout) == (0, "True ['-', 'x'] __main__\n"), done.stderr


def test_classes_of_code_can_be_pickled():
    done = run("resilin.as_torch", "-c", PICKLES, "x")
    assert (done.returncode, done.stdout) == (0, "True ['-c', 'x'] __main__\n"), done.stderr


def test_code_is_run_as_python_runs_it():
    done = run("resilin.as_torch", "-c", "import sys, torch; print(torch.arange(3).tolist(), sys.argv)", "x")
    assert (done.returncode, done.stdout) == (0, "[0, 1, 2] ['-c', 'x']\n"), done.stderr


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import torch; torch.nothing", "AttributeError: module 'torch' has no attribute 'nothing'"),
        ("import torch.nothing", "ModuleNotFoundError: No module named 'torch.nothing'"),
        ("from torch import nothing", "ImportError: cannot import name 'nothing' from 'torch'"),
        ("import torch.fx; torch.fx.symbolic_trace", "torch.fx has no 'symbolic_trace': resilin has no tracer yet"),
        ("import torch; torch._C._jit_pass_inline", "torch._C has no '_jit_pass_inline': resilin has nothing of"),
        ("import torch.ao.quantization as q; q.convert", "has no 'convert': resilin has no quantization"),
        (
            "import sys; sys.modules['tensorboardX'] = None; from torch.utils.tensorboard import SummaryWriter",
            "resilin[tensorboard]",
        ),
    ],
)
def test_a_name_that_is_missing_is_named(code, error):
    done = run("resilin.as_torch", "-c", code)
    assert done.returncode == 1
    assert error in done.stderr


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("nothing.py",), "script 'nothing.py' does not exist"),
        (("-m",), "-m needs a module"),
        (("-c",), "-c needs code"),
        (("-x", "program.py"), "option '-x' is unknown"),
    ],
)
def test_what_cannot_be_run_is_refused(arguments, error):
    done = run("resilin.as_torch", *arguments)
    assert done.returncode == 1
    assert f"python -m resilin.as_torch: error: as_torch: {error}" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_error_of_the_program_shows_where_it_was_raised():
    done = run("resilin.as_torch", "-c", "import torch, resilin\nraise resilin.errors.UsageError('of the program')")
    assert done.returncode == 1
    assert 'File "<string>", line 2' in done.stderr
    assert "UsageError: of the program" in done.stderr


def test_a_star_gives_what_pytorchs_gives():
    code = "from torch import *\nprint(randn(2).shape, float32, 'nn' in globals(), 'Any' in globals())"
    done = run("resilin.as_torch", "-c", code)
    assert done.stdout == "torch.Size([2]) torch.float32 False False\n", done.stderr


def test_values_are_shown_with_pytorchs_names_in_this_process_and_in_those_it_starts():
    code = """
    import subprocess, sys
    show = "import torch; x = torch.ones(1, dtype=torch.float64); print(x, x.dtype, x.shape, x.layout)"
    exec(show + "; print(torch.channels_last)")
    assert {"torch.float64": 1}[str(x.dtype)] == 1
    print(subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, timeout=60).stdout, end="")
    """
    done = run("resilin.as_torch", "-c", textwrap.dedent(code))
    shown = "tensor([1.], dtype=torch.float64) torch.float64 torch.Size([1]) torch.strided\n"
    assert done.stdout == f"{shown}torch.channels_last\n{shown}", done.stderr
    assert repr(resilin.float64) == "resilin.float64"


def test_an_imported_pytorch_is_in_the_way(tmp_path):
    (tmp_path / "torch.py").write_text("")
    code = """
    import sys
    sys.path.insert(0, sys.argv[1])
    import torch
    from resilin import as_torch
    try:
        as_torch.install()
    except ValueError as error:
        print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert f"PyTorch is imported already, from {tmp_path / 'torch.py'}" in done.stdout, done.stderr


def test_an_installed_pytorch_is_not(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('the installed one')")
    (tmp_path / "torch-9.dist-info").mkdir()
    (tmp_path / "torch-9.dist-info" / "METADATA").write_text("Name: torch\nVersion: 9\n")
    code = "import importlib.metadata; print(importlib.metadata.version('torch')); import torch; print(torch.__name__)"
    done = run("resilin.as_torch", "-c", code, env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"})
    assert done.stdout == f"{as_torch.VERSION}\ntorch\n", done.stderr


@pytest.mark.multiproc
def test_pytorchs_launcher_starts_it(tmp_path):
    (tmp_path / "ranks.py").write_text(RANKS)
    launcher = ("resilin.as_torch", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    done = run(*launcher, "ranks.py", "--lr", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 2, ['--lr', '1']" for rank in (0, 1)]


@pytest.mark.multiproc
@pytest.mark.parametrize("as_module", [False, True])
def test_the_workers_of_the_launcher_run_it_too(tmp_path, as_module):
    (tmp_path / "ranks.py").write_text(RANKS)
    name = ["-m", "ranks"] if as_module else ["ranks.py"]
    launcher = Path(sys.executable).with_name("elastic-run")
    command = [launcher, "--standalone", "--nproc-per-node=2", "--as-torch", *name, "--lr", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 2, ['--lr', '1']" for rank in (0, 1)]


def test_the_launcher_refuses_it_for_what_is_no_python(tmp_path):
    launcher = Path(sys.executable).with_name("elastic-run")
    command = [launcher, "--standalone", "--as-torch", "--no-python", "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode != 0
    assert "--no-python and --as-torch exclude each other" in done.stderr
