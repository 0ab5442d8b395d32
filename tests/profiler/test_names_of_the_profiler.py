"""Every name of torch.profiler and torch.autograd.profiler: here with its parameters, or said to be left out."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

from resilin import profiler

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "profiler.md").read_text()
TABLES, LEFT_OUT = PAGE.split("## Names of PyTorch that are not here")
MODULES = ("profiler", "autograd.profiler", "autograd.profiler_util")
OTHERS = {"EventList", "EventMetadata", "ExecutionTraceObserver"}  # whose constructors are told of on the page


def rows(module):
    section = TABLES.split(f"\n## `resilin.{module}`\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \| (.+) \| (.*) \| (.+) \|$", section, re.MULTILINE)


def left_out():
    names = "".join(line.split("|")[1] for line in LEFT_OUT.splitlines() if line.startswith("| `"))
    return set(re.findall(r"`([\w.]+)`", names))


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_one_row_on_the_page(module):
    published = importlib.import_module(f"resilin.{module}").__all__
    assert sorted(row[0] for row in rows(module)) == sorted(name for name in published if not name.startswith("_"))


@pytest.mark.parametrize("module", MODULES)
def test_every_row_names_tests_that_are_there(module):
    for name, _, _, tests in rows(module):
        named = re.findall(r"`([^`]+)`", tests)
        assert named, name
        assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("module", MODULES)
def test_every_name_of_pytorch_is_here_or_is_said_to_be_left_out(module, pytorch):
    theirs = pytorch["signatures"][f"torch.{module}"]
    ours = importlib.import_module(f"resilin.{module}")
    assert {name for name in theirs if not hasattr(ours, name)} <= left_out()
    assert not {name for name in left_out() if "." not in name and hasattr(ours, name)}


@pytest.mark.parametrize("module", MODULES)
def test_functions_and_methods_take_pytorchs_parameters_with_its_defaults(module, pytorch):
    compared = 0
    for name, calls in pytorch["signatures"][f"torch.{module}"].items():
        value = getattr(importlib.import_module(f"resilin.{module}"), name, None)
        for method, theirs in calls.items():
            if value is None or f"{name}.{method}" in left_out() or (name in OTHERS and not method):
                continue
            compared += 1
            ours = inspect.signature(getattr(value, method) if method else value).parameters
            for parameter, *default in theirs:
                assert parameter in ours, (name, method)
                found = ours[parameter].default
                assert not default or without_number(repr(found)) == without_number(default[0]), (name, parameter)
    assert compared > 5


def without_number(text):
    return re.sub(r"<(DeviceType\.CPU): 0>", r"\1", text)


def test_a_profile_can_always_write_traces():
    assert profiler.kineto_available() is True
