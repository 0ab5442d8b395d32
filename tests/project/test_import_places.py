"""The table of places: a program for PyTorch finds every name where it imports it from."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import resilin
from resilin._base.places import ABSENT, GATHERED, SAME, home_of, roots

# what programs for PyTorch import, with `resilin` for `torch`
PROGRAM = """
import resilin as torch
import resilin.distributed as dist
import resilin.distributed.launcher.api
import resilin.nn.functional as F
import resilin.utils.checkpoint
from resilin import nn, optim
from resilin.cuda.amp import GradScaler
from resilin.distributed import DistBackendError, ReduceOp
from resilin.distributed.algorithms.ddp_comm_hooks import default_hooks as default, powerSGD_hook as powerSGD
from resilin.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from resilin.distributed.algorithms.join import Join
from resilin.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from resilin.distributed.distributed_c10d import ProcessGroup
from resilin.distributed.elastic.multiprocessing.errors import record
from resilin.distributed.optim import ZeroRedundancyOptimizer
from resilin.distributed.optim.zero_redundancy_optimizer import ZeroRedundancyOptimizer as Same
from resilin.nn.modules.batchnorm import BatchNorm1d
from resilin.nn.parallel import DataParallel, DistributedDataParallel
from resilin.nn.parallel.distributed import DistributedDataParallel as DDP
from resilin.optim.adamw import AdamW
from resilin.optim.lr_scheduler import StepLR
from resilin.utils.data import DataLoader, Dataset
from resilin.utils.data.dataloader import default_collate
from resilin.utils.data.distributed import DistributedSampler

assert DDP is DistributedDataParallel is torch.nn.parallel.DistributedDataParallel is torch.ddp.DistributedDataParallel
assert dist is torch.distributed is torch.dist and dist.__spec__.name == "resilin.dist"
assert ZeroRedundancyOptimizer is Same
assert DistributedSampler is torch.utils.data.distributed.DistributedSampler
"""


def test_a_program_is_ported_by_one_word_in_its_imports():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("place", sorted(SAME))
def test_another_name_of_a_module_is_that_module_and_loads_it_once(place):
    assert importlib.import_module(f"resilin.{place}") is importlib.import_module(f"resilin.{SAME[place]}")


@pytest.mark.parametrize("place", sorted(GATHERED))
def test_a_gathered_place_has_the_names_of_its_homes(place):
    module = importlib.import_module(f"resilin.{place}")
    assert module.__all__ == sorted(GATHERED[place])
    for name, home in GATHERED[place].items():
        assert getattr(module, name) is getattr(importlib.import_module(f"resilin.{home}"), name)
        assert name in dir(module)
    with pytest.raises(AttributeError, match=f"module 'resilin.{place}' has no attribute 'nothing'"):
        module.nothing  # noqa: B018


@pytest.mark.parametrize("place", sorted(ABSENT))
def test_a_place_without_content_says_what_there_is_instead(place):
    with pytest.raises(ModuleNotFoundError, match=r"docs/parity\.md") as caught:
        importlib.import_module(f"resilin.{place}")
    assert caught.value.name == f"resilin.{place}"
    assert ABSENT[place] in str(caught.value)
    if "." not in place:
        with pytest.raises(AttributeError, match=r"docs/parity\.md"):
            getattr(resilin, place)


def test_an_unknown_module_below_a_place_is_not_found():
    for name in ("resilin.distributed.nothing", "resilin.nn.parallel.nothing", "resilin.nothing"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)


def test_no_entry_hides_a_file():
    folder = Path(resilin.__file__).parent
    for place in (*SAME, *GATHERED, *ABSENT):
        path = folder / place.replace(".", "/")
        assert not path.with_suffix(".py").exists(), place
        assert not path.is_dir(), place


def test_the_longest_entry_counts():
    assert home_of("distributed.algorithms.ddp_comm_hooks.default_hooks") == "ddp.comm_hooks.default_hooks"
    assert home_of("distributed.algorithms.join") == "dist.algorithms.join"
    assert home_of("distributed.optim.anything") is None
    assert home_of("nn.functional") is None
    assert {"distributed", "functional"} <= roots() <= set(dir(resilin))


def test_the_launcher_starts_under_pytorchs_name():
    command = [sys.executable, "-m", "resilin.distributed.run", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--nproc-per-node" in done.stdout


def test_the_package_of_collectives_is_pytorchs_function_too():
    x, y = resilin.tensor([3.0, 0.0]), resilin.tensor([0.0, 4.0])
    assert resilin.dist(x, y).item() == 5.0
    assert resilin.dist(x, y, p=1).item() == 7.0
    with pytest.raises(TypeError, match=r"dist\(\): expected a Tensor, got int"):
        resilin.dist(3, y)
