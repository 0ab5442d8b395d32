"""Type checkers and editors know the names that are loaded on first use, and PyTorch's places."""

import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

import resilin
from resilin.core.public import names

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = str(ROOT / "scripts")

# a line of a program for PyTorch -> what a type checker says of it
TYPES = {
    "torch.randn(2, 3)": "resilin.core.tensor.Tensor",
    "torch.float32": "resilin.core.dtype.dtype",
    "torch.float": "resilin.core.dtype.dtype",
    "torch.exp": "def (input: Tensor) -> Tensor",
    "torch.clamp_": "def (input: Tensor, min: Any =, max: Any =) -> Tensor",
    "torch.no_grad()": "resilin.core.autograd.grad_mode.no_grad",
    "torch.save": "def (obj: Any, f: str | PathLike[str] | BinaryIO, ",
    "torch.__version__": "str",
    "torch.pi": "float",
    "x.sum(dim=0).unsqueeze_(1).mT": "resilin.core.tensor.Tensor",
    "x.grad": "resilin.core.tensor.Tensor | None",
    "x.is_cuda": "bool",
    "2 * x + 1 > 0": "resilin.core.tensor.Tensor",
    "nn.Linear(3, 2)": "resilin.nn.modules.linear.Linear",
    "torch.nn.Linear(3, 2).in_features": "int",
    "torch.nn.functional.relu": "def (input: Tensor, inplace: bool =) -> Tensor",
    "torch.nn.parallel.DistributedDataParallel": "def (module: Module, ",
    "DDP(nn.Linear(3, 2))": "resilin.ddp.wrapper.DistributedDataParallel",
    "CTCLoss(blank=1)": "resilin.nn.modules.likelihood_loss.CTCLoss",
    "_BatchNorm": "def (num_features: int, ",
    "torch.cuda.amp.GradScaler()": "resilin.amp.grad_scaler.GradScaler",
    "torch.optim.adamw.AdamW([x], lr=0.1)": "resilin.optim.adamw.AdamW",
    "all_reduce": "def (tensor: ",
    "dist.all_reduce": "def (tensor: ",
    "dist.get_rank()": "int",
    "torch.distributed.optim.ZeroRedundancyOptimizer": "def (params: ",
    "dist.algorithms.join.Join": "def (joinables: ",
    "default_hooks.fp16_compress_hook": "def (process_group: ",
    "elastic_launch": "def (config: LaunchConfig, ",
    "DataLoader": "def [T_co] (dataset: ",
    "spectral_norm": "def (module: Module, name: str =, ",
    "torch.nothing": 'error: Module has no attribute "nothing"',
    "x.nothing": 'error: "Tensor" has no attribute "nothing"',
    "nn.parallel.nothing": 'error: Module has no attribute "nothing"',
    "nn.Linear('3', 2)": 'error: Argument 1 to "Linear" has incompatible type "str"; expected "int"',
}
PROGRAM = """
import resilin as torch
import resilin.distributed as dist
import resilin.optim.adamw
from resilin import nn
from resilin.distributed import all_reduce
from resilin.distributed.algorithms.ddp_comm_hooks import default_hooks
from resilin.distributed.launcher.api import elastic_launch
from resilin.nn.modules.batchnorm import _BatchNorm
from resilin.nn.modules.loss import CTCLoss
from resilin.nn.parallel import DistributedDataParallel as DDP
from resilin.nn.utils.spectral_norm import spectral_norm
from resilin.utils.data import DataLoader

x = torch.ones(3, requires_grad=True)
"""
# what the source itself says nothing of
UNTYPED = {"x.grad_dtype", "x.grad_fn"}

pytest.importorskip("mypy", reason="mypy is a tool of development: pip install 'resilin[dev]'")


@pytest.fixture(scope="module")
def stubs():
    sys.path.insert(0, SCRIPTS)
    import type_stubs

    sys.path.remove(SCRIPTS)
    return type_stubs


@pytest.fixture
def said(tmp_path, tmp_path_factory):
    """said(lines, python) -> what mypy says of each line of a program that begins with PROGRAM, short of modules."""

    cache = tmp_path_factory.getbasetemp() / "mypy"  # for all tests of a process: most of it is what numpy says

    def run(lines, python=sys.executable):
        start = PROGRAM.count("\n") + 1
        (tmp_path / "program.py").write_text(PROGRAM + "".join(f"{line}\n" for line in lines))
        command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context"]
        command += ["--python-executable", python, "--cache-dir", cache, "program.py"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=tmp_path)
        found = {}
        for number, text in re.findall(r"^program\.py:(\d+): (.*)$", done.stdout, re.MULTILINE):
            shown = re.sub(r'^note: Revealed type is "(.*)"$', r"\1", text)
            found.setdefault(int(number) - start, shown)
        assert min(found) >= 0, done.stdout  # the program itself is right
        assert done.stderr == ""
        return [found.get(number) for number in range(len(lines))]

    return run


def check(said, *python):
    lines = [line if kind.startswith("error: ") else f"reveal_type({line})" for line, kind in TYPES.items()]
    for (line, wanted), text in zip(TYPES.items(), said(lines, *python), strict=True):
        short = re.sub(r"\b(?:resilin|typing|os)\.(?:\w+\.)*(\w+)", r"\1", text)
        assert text.startswith(wanted) or short.startswith(wanted), f"{line}: {text}"


@pytest.mark.slow
def test_the_stubs_are_those_of_the_table_and_the_sources(stubs):
    stale = [str(path.relative_to(ROOT)) for path in stubs.stale()]
    assert stale == [], "write them: python scripts/type_stubs.py --write"


@pytest.mark.slow
def test_a_program_is_typed_beside_a_checkout(said):
    check(said)


@pytest.mark.slow
def test_a_program_is_typed_beside_an_installed_package(said, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, timeout=60)
    site = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    for package in ("resilin", "resilin-stubs"):
        ignored = shutil.ignore_patterns("*.so", "*.cpp", "*.hpp", "*.cu", "__pycache__")
        shutil.copytree(ROOT / package, site / package, ignore=ignored)
    (site / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")  # numpy
    check(said, str(tmp_path / "venv" / "bin" / "python"))


@pytest.mark.slow
def test_every_function_of_the_root_and_every_method_of_a_tensor_has_a_type(said):
    lines = [f"torch.{name}" for name in names.__all__ if not isinstance(getattr(resilin, name), ModuleType)]
    lines += [f"x.{name}" for name in vars(resilin.Tensor) if not name.startswith("_")]
    kinds = said([f"reveal_type({line})" for line in lines])
    nothing = ("Any", "def (*Any, **Any) -> Any", None)
    untyped = {line for line, kind in zip(lines, kinds, strict=True) if kind in nothing or kind.startswith("error")}
    assert untyped == UNTYPED


def test_a_module_that_the_table_adds_to_is_told_so(stubs, monkeypatch, tmp_path):
    path = tmp_path / "loss.py"
    path.write_text("import typing\n")
    monkeypatch.setattr(sys.modules["resilin.nn.modules.loss"], "__file__", str(path))
    with pytest.raises(LookupError, match=r"loss\.py: expected the line 'if TYPE_CHECKING:"):
        list(stubs.blocks())
    path.write_text(textwrap.dedent(f"import typing\n{stubs.MARK}    from somewhere import gone as gone\nx = 1\n"))
    text = dict(stubs.blocks())[path]
    assert text.startswith(f"import typing\n{stubs.MARK}    from resilin.nn import CosineEmbeddingLoss as ")
    assert text.endswith("as TripletMarginWithDistanceLoss\nx = 1\n")
