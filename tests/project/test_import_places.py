"""The table of places: a program for PyTorch finds every name where it imports it from."""

import importlib
import inspect
import json
import pickle
import pydoc
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import resilin
from resilin._base.places import ABSENT, ADDED, CHILDREN, GATHERED, SAME, home_of, names

# PyTorch's public modules, with their public names and the home of each: tests/fixtures/make_torch_places.py
PYTORCH = json.loads((Path(__file__).parent.parent / "fixtures" / "torch_places.json").read_text())

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
from resilin.nn.modules.utils import _pair, consume_prefix_in_state_dict_if_present
from resilin.nn.utils.spectral_norm import SpectralNorm, spectral_norm
from resilin.optim.adamw import AdamW
from resilin.optim.lr_scheduler import StepLR
from resilin.utils.data import DataLoader, Dataset
from resilin.utils.data.dataloader import default_collate
from resilin.utils.data.distributed import DistributedSampler

assert DDP is DistributedDataParallel is torch.nn.parallel.DistributedDataParallel is torch.ddp.DistributedDataParallel
assert dist is torch.distributed is torch.dist and dist.__spec__.name == "resilin.distributed"
assert ZeroRedundancyOptimizer is Same
assert DistributedSampler is torch.utils.data.distributed.DistributedSampler
"""


def check(program, *options):
    command = [sys.executable, *options, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def module_of(place):
    """The module at a place below the root; None where there is none, which the error must say."""
    path = f"resilin.{place}" if place else "resilin"
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        missing, said = error.name, "docs/parity.md says what there is" in str(error)
    assert said or f"{path}.".startswith(f"{missing}."), (path, missing)
    return None


def at(place, name):
    """What is there under that name; None for nothing, and for a module."""
    found = getattr(module_of(place), name, None)
    return None if isinstance(found, ModuleType) else found


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("-O",), ("-OO",)])
def test_a_program_is_ported_by_one_word_in_its_imports(options):
    check(PROGRAM, *options)


def test_what_is_in_one_of_pytorchs_places_is_in_all_of_them():
    missing, others = [], []
    for place, found in PYTORCH.items():
        for name, home in (found or {}).items():
            here, there = at(place, name), at(home, name)
            if (here is None) != (there is None):
                missing.append(f"{place if here is None else home}.{name}")
            elif here is not there:
                others.append(f"{place}.{name}")
    assert missing == []
    assert others == []


def test_every_module_of_pytorch_is_there_or_says_what_there_is_instead():
    silent = []
    for place in PYTORCH:
        try:
            importlib.import_module(f"resilin.{place}" if place else "resilin")
        except ModuleNotFoundError as error:
            if "docs/parity.md" not in str(error):
                silent.append(str(error))
    assert silent == []


def test_every_entry_is_a_place_or_a_name_of_pytorch():
    ours = {"dist", "distributed.elastic.multiprocessing", "utils.data._utils", "utils.data._utils.collate"}
    ours |= {"distributed.pipeline", "distributed.pipeline.sync"}  # PyTorch had them until 2.3
    ours |= {
        "_C",
        "_C._profiler",
        "_dynamo",
        "_dynamo.config",
        "_inductor",
        "_inductor.config",
        "_utils",
    }  # private, and used by programs
    named = {f"{place}.{name}".lstrip(".") for place, found in PYTORCH.items() for name in found or {}}
    assert {*SAME, *GATHERED} - {*PYTORCH} - ours == set()
    assert {*ABSENT} - {*PYTORCH} - named == set()


@pytest.mark.parametrize("place", sorted(SAME))
def test_another_name_of_a_module_is_that_module_and_loads_it_once(place):
    assert importlib.import_module(f"resilin.{place}") is importlib.import_module(f"resilin.{SAME[place]}")


@pytest.mark.parametrize("place", sorted({**GATHERED, **ADDED}))
def test_a_place_has_the_names_that_the_table_gives_it(place):
    module = importlib.import_module(f"resilin.{place}")
    for name, (home, there) in names({**GATHERED, **ADDED}[place]).items():
        assert getattr(module, name) is getattr(importlib.import_module(f"resilin.{home}"), there)
        assert name in dir(module)
        assert (name in module.__all__) is not name.startswith("_")
    with pytest.raises(AttributeError, match=f"module 'resilin.{place}' has no attribute 'nothing'"):
        module.nothing  # noqa: B018


@pytest.mark.parametrize("place", sorted({*ABSENT} & {*PYTORCH}))
def test_a_place_without_content_says_what_there_is_instead(place):
    with pytest.raises(ModuleNotFoundError, match=r"docs/parity\.md") as caught:
        importlib.import_module(f"resilin.{place}")
    assert ABSENT[place] in str(caught.value)


@pytest.mark.parametrize("name", sorted(name for name in ABSENT if "." not in name or name not in PYTORCH))
def test_a_name_without_content_says_what_there_is_instead(name):
    place, _, last = name.rpartition(".")
    with pytest.raises(AttributeError) as caught:
        getattr(module_of(place), last)
    assert ABSENT[name] in str(caught.value)


@pytest.mark.parametrize("name", sorted(ABSENT))
def test_what_is_imported_from_a_place_says_what_there_is_instead(name):
    place, _, last = f"resilin.{name}".rpartition(".")
    with pytest.raises(ModuleNotFoundError) as caught:
        exec(f"from {place} import {last}", {})
    assert ABSENT[name] in str(caught.value)


def test_an_unknown_module_below_a_place_is_not_found():
    for name in ("resilin.distributed.nothing", "resilin.nn.parallel.nothing", "resilin.nothing"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)


def test_an_entry_has_a_file_exactly_where_it_adds_to_one():
    folder = Path(resilin.__file__).parent
    has_file = {
        place
        for place in (*SAME, *GATHERED, *ABSENT, *ADDED)
        for path in [folder / place.replace(".", "/")]
        if path.with_suffix(".py").exists() or (path / "__init__.py").exists()
    }
    assert has_file == {*ADDED}


def test_the_longest_entry_counts():
    assert home_of("distributed.algorithms.ddp_comm_hooks.default_hooks") == "ddp.comm_hooks.default_hooks"
    assert home_of("dist.algorithms.join") == "distributed.algorithms.join"
    assert home_of("distributed.optim") is None
    assert home_of("distributed.optim.anything") is None
    assert home_of("nn.functional") is None
    assert {"dist", "functional"} <= set(CHILDREN[""]) <= set(dir(resilin))


@pytest.mark.slow
def test_places_below_the_root_need_no_import_of_their_own():
    check("""
import resilin as torch
torch.cuda.amp.GradScaler
torch.distributed.algorithms.join.Join
torch.distributed.elastic.multiprocessing.errors.record
torch.distributed.launcher.api.elastic_launch
torch.distributed.optim.ZeroRedundancyOptimizer
torch.nn.modules.batchnorm._BatchNorm
torch.nn.modules.loss.CTCLoss
torch.nn.parallel.DistributedDataParallel
torch.optim.adamw.AdamW
torch.optim.lr_scheduler.StepLR
torch.utils.data._utils.collate.default_collate
torch.utils.data.dataloader.DataLoader
""")


@pytest.mark.parametrize("first", ["{parent}", "{parent}.{name}", "torch"])
def test_a_module_that_bears_a_functions_name_does_not_take_the_functions_place(first):
    places = ("autograd.gradcheck", "distributed.rendezvous", "nn.parallel.data_parallel", "nn.utils.spectral_norm")
    lines = ["import importlib, inspect", "import resilin as torch"]
    for place in (*places, "nn.utils.weight_norm"):
        parent, _, name = f"resilin.{place}".rpartition(".")
        lines += [
            f"import {first.format(parent=parent, name=name).replace('torch', 'resilin')}",
            f"module = importlib.import_module('resilin.{place}')",
            f"from resilin.{place} import {name}",
            f"import resilin.{place}",
            f"assert inspect.isfunction({name}), '{place}'",
            f"assert resilin.{place} is {name} is module.{name} is not module, '{place}'",
        ]
    check("\n".join(lines))


def test_private_names_that_programs_use_are_those_classes():
    from resilin.nn.modules import batchnorm, conv, dropout, instancenorm, loss

    nn = resilin.nn
    assert isinstance(nn.BatchNorm2d(2), batchnorm._BatchNorm)
    assert isinstance(nn.SyncBatchNorm(2), batchnorm._BatchNorm)
    assert isinstance(nn.InstanceNorm1d(2), instancenorm._InstanceNorm)
    assert isinstance(nn.InstanceNorm1d(2), batchnorm._NormBase)
    assert not isinstance(nn.InstanceNorm1d(2), batchnorm._BatchNorm)
    assert isinstance(nn.Conv1d(1, 1, 1), conv._ConvNd)
    assert not isinstance(nn.Conv1d(1, 1, 1), conv._ConvTransposeNd)
    assert isinstance(nn.ConvTranspose1d(1, 1, 1), conv._ConvTransposeNd)
    assert isinstance(nn.Dropout(), dropout._DropoutNd)
    assert isinstance(nn.CTCLoss(), loss._Loss)


@pytest.mark.parametrize(
    ("statement", "given", "not_given"),
    [
        ("from resilin import *", "randn Tensor float32 no_grad save GradScaler", "nn importlib annotations"),
        ("from resilin.nn import *", "Linear functional", "DistributedDataParallel"),
        ("from resilin.nn.parallel import *", "DistributedDataParallel DataParallel", "nothing"),
        ("from resilin.nn.modules.loss import *", "MSELoss CTCLoss", "Module _Loss Any"),
        ("from resilin.nn.modules.batchnorm import *", "BatchNorm1d", "_BatchNorm"),
        ("from resilin.distributed import *", "all_reduce ReduceOp", "sys ModuleType"),
        ("from resilin.utils.data import *", "DataLoader", "importlib"),
    ],
)
def test_a_star_gives_the_public_names(statement, given, not_given):
    space = {}
    exec(statement, space)
    assert [name for name in given.split() if name not in space] == []
    assert [name for name in not_given.split() if name in space] == []


def test_help_and_inspect_know_a_place():
    place = importlib.import_module("resilin.nn.parallel")
    assert "PyTorch's place for DataParallel, DistributedDataParallel, " in pydoc.render_doc(place)
    assert "class DistributedDataParallel" in pydoc.render_doc("resilin.nn.parallel.DistributedDataParallel")
    assert inspect.getmodule(place.DistributedDataParallel).__name__ == "resilin.ddp.wrapper"
    assert inspect.getsource(importlib.import_module("resilin.nn.modules.loss")).startswith('"""')
    assert find_spec("resilin.distributed.optim").name == "resilin.distributed.optim"
    assert find_spec("resilin.distributed.nothing") is None


def test_a_pickle_by_a_place_loads():
    for place, name in (("nn.parallel.distributed", "DistributedDataParallel"), ("nn.modules.loss", "CTCLoss")):
        text = f"cresilin.{place}\n{name}\n.".encode()
        assert pickle.loads(text) is getattr(importlib.import_module(f"resilin.{place}"), name)


@pytest.mark.slow
def test_a_reloaded_module_keeps_what_the_table_adds():
    check("""
import importlib
import resilin.nn.modules.loss, resilin.nn.parallel, resilin.nn.utils, resilin.nn.utils.weight_norm
for module in (resilin.nn.modules.loss, resilin.nn.parallel, resilin.nn.utils):
    assert importlib.reload(module) is module
resilin.nn.modules.loss.CTCLoss, resilin.nn.parallel.DistributedDataParallel
assert callable(resilin.nn.utils.weight_norm)
""")


@pytest.mark.slow
def test_threads_may_be_the_first_to_use_places_all_at_once():
    check("""
import threading
import resilin as torch
names = (
    "distributed.optim.ZeroRedundancyOptimizer", "nn.parallel.DistributedDataParallel", "cuda.amp.GradScaler",
    "distributed.algorithms.ddp_comm_hooks.default_hooks", "utils.data.dataloader.DataLoader",
    "nn.modules.loss.CTCLoss", "distributed.elastic.multiprocessing.errors.record", "optim.adamw.AdamW",
    "distributed.checkpoint.save",
)
errors, start = [], threading.Barrier(2 * len(names))
def use(name):
    start.wait()
    try:
        eval(f"torch.{name}")
    except BaseException as error:
        errors.append((name, repr(error)))
threads = [threading.Thread(target=use, args=(name,)) for name in names * 2]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not errors, errors
""")


@pytest.mark.slow
def test_threads_may_import_places_of_what_is_loaded_all_at_once():
    check("""
import importlib, threading
import resilin.checkpoint, resilin.data, resilin.zero
places = (
    "distributed.optim", "nn.parallel", "distributed.algorithms.ddp_comm_hooks.default_hooks", "utils.data.dataloader",
    "distributed", "cuda.amp", "distributed.elastic.multiprocessing.errors", "optim.adamw", "distributed.checkpoint",
)
errors, start = [], threading.Barrier(2 * len(places))
def load(place):
    start.wait()
    try:
        module = importlib.import_module(f"resilin.{place}")
        for name in getattr(module, "__all__", ()):
            getattr(module, name)
    except BaseException as error:
        errors.append((place, repr(error)))
threads = [threading.Thread(target=load, args=(place,)) for place in places * 2]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not errors, errors
""")


@pytest.mark.parametrize("name", ["run", "launch"])
def test_the_launcher_starts_under_pytorchs_names(name):
    command = [sys.executable, "-m", f"resilin.distributed.{name}", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--nproc-per-node" in done.stdout


def test_the_package_of_collectives_is_pytorchs_function_too():
    x, y = resilin.tensor([3.0, 0.0]), resilin.tensor([0.0, 4.0])
    assert resilin.distributed(x, y).item() == 5.0
    assert resilin.distributed(x, y, p=1).item() == 7.0
    with pytest.raises(TypeError, match=r"dist\(\): expected a Tensor, got int"):
        resilin.distributed(3, y)
