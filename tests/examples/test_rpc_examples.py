"""The examples of remote calls, small: they learn, with two workers beside the one that holds the weights."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.multiproc


def test_the_parameter_server_takes_one_step_for_the_gradients_of_all(elastic_run: Callable[..., str]) -> None:
    output = elastic_run("examples/rpc_parameter_server.py", "--epochs", "8", workers=3)
    said = re.search(r"^(\d+) steps of 2 workers, test accuracy ([\d.]+)%$", output, re.MULTILINE)
    assert said, output
    assert int(said[1]) == 8 * 15  # 718 images of each worker in batches of 48: each call was part of one step
    assert float(said[2]) >= 92.0


def test_actors_and_a_learner_catch_the_ball(elastic_run: Callable[..., str]) -> None:
    output = elastic_run("examples/rpc_actor_learner.py", "--updates", "100", workers=3)
    said = re.search(r"^caught ([\d.]+)% of the last balls, with 2 actors$", output, re.MULTILINE)
    assert said, output
    assert float(said[1]) >= 90.0  # by chance it is one in 7, at the best place one in 2
