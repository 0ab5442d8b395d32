"""`resilin.func`, `autograd.functional` and batched `autograd.grad` give what PyTorch gave."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core import trees

FIXTURES = Path(__file__).parents[1] / "fixtures"
sys.path.insert(0, str(FIXTURES))
from func_programs import PROGRAMS  # noqa: E402 - beside the script that records them

EXPECTED = json.loads((FIXTURES / "torch_func.json").read_text())


def _compare(found: Any, expected: Any, where: str) -> None:
    if isinstance(found, resilin.Tensor):
        np.testing.assert_allclose(found.detach().numpy(), np.asarray(expected), rtol=1e-9, atol=1e-10, err_msg=where)
        assert tuple(found.shape) == np.asarray(expected).shape, where
        return
    assert len(found) == len(expected)
    pairs = found.items() if isinstance(found, dict) else enumerate(found)
    for key, part in pairs:
        _compare(part, expected[key], f"{where}[{key!r}]")


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_program_gives_what_pytorch_gives(name: str) -> None:
    _compare(PROGRAMS[name](resilin), EXPECTED[name], name)


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_results_are_outside_the_graph_unless_somebody_asked(name: str) -> None:
    assert not any(leaf.requires_grad for leaf in trees.flatten(PROGRAMS[name](resilin))[0])
