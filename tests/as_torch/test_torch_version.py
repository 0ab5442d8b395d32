"""`torch.__version__` is one that programs can parse and compare."""

import itertools
import random
import subprocess
import sys

import pytest
from packaging.version import Version

from resilin import as_torch
from resilin.torch_version import TorchVersion

PARTS = (
    ("1", "2.1", "2.1.0", "2.13", "0!2", "1!1"),
    ("", "a1", "b2", "rc3", ".alpha", "-pre4"),
    ("", ".post1", "-2", "r3"),
    ("", ".dev0", ".dev20220101"),
    ("", "+cu118", "+resilin0.1.0", "+1.abc", "+1"),
)


def test_versions_are_ordered_as_pep_440_has_it():
    versions = ["".join(parts) for parts in itertools.product(*PARTS)]
    draw = random.Random(0)
    for _ in range(3000):
        a, b = draw.choice(versions), draw.choice(versions)
        for operation in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__"):
            wanted = getattr(Version(a), operation)(Version(b))
            assert getattr(TorchVersion(a), operation)(b) is wanted, (a, operation, b)


def test_a_version_compares_with_what_programs_compare_it_with():
    version = TorchVersion("2.13.0+resilin0.1.0")
    assert version >= (2, 1)
    assert version > (2, 13)
    assert version >= "2.9"
    assert version < "2.14.0.dev20260101"
    assert version == "2.13.0+resilin0.1.0"
    assert version != "2.13.0"
    assert version != 2
    assert {version: 1}["2.13.0+resilin0.1.0"] == 1
    assert version < "main"  # no version: as texts
    assert version.split(".")[:2] == ["2", "13"]
    with pytest.raises(TypeError):
        version < 3  # noqa: B015


def test_all_that_tells_the_version_agrees():
    code = """
import importlib.metadata, sys
first = importlib.metadata.version("torch")
import torch
import torch.version
from torch.torch_version import TorchVersion
print(first, torch.__version__, torch.version.__version__, type(torch.__version__) is TorchVersion)
print(torch.version.cuda is None or torch.cuda.is_available(), torch.version.hip, torch.version.debug)
"""
    done = subprocess.run(
        [sys.executable, "-m", "resilin.as_torch", "-c", code], capture_output=True, text=True, timeout=60
    )
    version = as_torch.VERSION
    assert done.stdout == f"{version} {version} {version} True\nTrue None False\n", done.stderr
    assert Version(version).release == (2, 13, 0)
