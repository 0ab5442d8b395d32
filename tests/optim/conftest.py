"""Fixtures of the optimizer tests: PyTorch's numbers, written by tests/fixtures/make_torch_optimizers.py."""

import json
from pathlib import Path

FIXTURES = Path(__file__).parents[1] / "fixtures"
FILES = {"optimizers": ["optimizers", "elementwise_optimizers"], "schedulers": ["schedulers", "more_schedulers"]}


def pytest_generate_tests(metafunc):
    for name, files in FILES.items():
        if f"{name}_case" in metafunc.fixturenames:
            cases = [case for file in files for case in json.loads((FIXTURES / f"torch_{file}.json").read_text())]
            ids = [f"{number}-{case['name']}" for number, case in enumerate(cases)]
            metafunc.parametrize(f"{name}_case", cases, ids=ids)
