"""Readable scenarios with recorded outcomes. With RECORD=1 in the environment, they are recorded again."""

import os
from pathlib import Path

import pytest
from membership_script import play

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_scenario_is_decided_as_recorded(path):
    text = path.read_text()
    outcome = play(text)
    if os.environ.get("RECORD"):
        path.write_text(outcome)
    assert outcome == path.read_text()


def test_there_are_scenarios():
    assert len(SCENARIOS) >= 20
