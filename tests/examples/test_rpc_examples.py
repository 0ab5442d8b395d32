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


def test_a_model_that_is_split_over_two_workers_learns(elastic_run: Callable[..., str]) -> None:
    output = elastic_run("examples/rpc_split_model.py", "--epochs", "4", workers=3)
    said = re.search(r"^test accuracy ([\d.]+)%, with the model in two workers$", output, re.MULTILINE)
    assert said, output
    assert float(said[1]) >= 92.0


def test_an_lstm_learns_with_its_embedding_at_a_server(elastic_run: Callable[..., str]) -> None:
    output = elastic_run("examples/rpc_remote_embedding.py", "--steps", "150", workers=2)
    said = re.search(r"^([\d.]+)% of the next tokens are right$", output, re.MULTILINE)
    assert said, output
    assert float(said[1]) >= 95.0  # by chance it is one in 12


def test_a_dense_part_in_ddp_and_a_table_at_a_server_learn_together(elastic_run: Callable[..., str]) -> None:
    output = elastic_run("examples/rpc_with_ddp.py", "--steps", "300", workers=3)
    said = re.search(r"^([\d.]+)% of the held-out pairs are right, with 2 trainers$", output, re.MULTILINE)
    assert said, output
    assert float(said[1]) >= 75.0  # by chance it is one half
