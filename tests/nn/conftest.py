"""Fixtures of the nn tests: PyTorch's numbers, written by tests/fixtures/make_torch_fixtures.py."""

import json
from pathlib import Path

import numpy as np
import pytest

import resilin

FIXTURES = Path(__file__).parents[1] / "fixtures"
NAMES = {"layer": "layers", "embedding": "embeddings", "loss": "losses", "attention": "attention", "sdpa": "sdpa"}


def pytest_generate_tests(metafunc):
    for name, file in NAMES.items():
        if f"{name}_case" in metafunc.fixturenames:
            cases = json.loads((FIXTURES / f"torch_{file}.json").read_text())
            ids = [f"{number}-{case.get('name', file)}" for number, case in enumerate(cases)]
            metafunc.parametrize(f"{name}_case", cases, ids=ids)


@pytest.fixture
def unpack():
    """Packed tensors, also inside containers, as resilin tensors."""

    def convert(value):
        if isinstance(value, dict) and value.keys() == {"shape", "dtype", "data"}:
            return resilin.tensor(np.array(value["data"], dtype=value["dtype"]).reshape(value["shape"]))
        if isinstance(value, dict):
            return {key: convert(item) for key, item in value.items()}
        if isinstance(value, list):
            return tuple(convert(item) for item in value)
        return value

    return convert


@pytest.fixture
def assert_close():
    """Whether a tensor has the shape and, nearly, the numbers of a packed one."""

    def check(got, packed, tolerance=1e-9):
        expected = np.array(packed["data"], dtype=packed["dtype"]).reshape(packed["shape"])
        assert tuple(got.shape) == expected.shape
        np.testing.assert_allclose(got.detach().numpy(), expected, rtol=tolerance, atol=tolerance)

    return check
