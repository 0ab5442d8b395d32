"""The number of threads changes neither results nor their bits."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from resilin.core.kernels import (
    attention,
    batch_norm,
    conv2d,
    cross_entropy,
    gelu,
    layer_norm,
    philox,
    recurrent,
    reduce_rows,
    softmax,
)
from resilin.core.kernels.loader import native
from resilin.core.machine import blas, threads
from resilin.errors import UsageError


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    before = threads.get_num_threads()
    yield
    threads.set_num_threads(before)


def _everything(rand: Any) -> list[Any]:
    x, w = rand(1000, 300), rand(300)
    image = rand(8, 6, 60, 60)
    y, mean, rstd = layer_norm.forward(x, w, w, 1e-5, 300)
    normed = batch_norm.forward(image, None, None, 1e-5)
    loss = cross_entropy.forward(x, np.arange(1000) % 300, None, -100, 0.1)
    filters = rand(7, 6, 3, 3)
    convolved = conv2d.forward(image, filters, None, (1, 1), (1, 1), (1, 1), 1)
    q, few, dropped = rand(30, 100, 16), rand(2, 400, 16), rand(2, 400, 400)  # a head, and parts of one, per thread
    seen, seen_saved = attention.forward(q, q, q, None, True, 0.3, None)
    seen_few, few_saved = attention.forward(few, few, few, None, False, 0.3, dropped)
    alone = filters[:6, :1]
    each = conv2d.forward(image, alone, None, (1, 1), (1, 1), (1, 1), 6)
    layer = [rand(340, 9), rand(34, 40), rand(34, 40), rand(160, 9), rand(160, 40), rand(160), rand(160), None]
    states, states_saved = recurrent.forward(layer, "lstm", (34,) * 10, False)
    return [
        y,
        *states,
        *recurrent.backward((True,) * 7 + (False,), list(states), states_saved, layer, "lstm", (34,) * 10, False)[:7],
        *layer_norm.backward(x, x, w, mean, rstd),
        *normed,
        *loss,
        convolved,
        *conv2d.backward(convolved, image, filters, (1, 1), (1, 1), (1, 1), 1),
        seen,
        *attention.backward(q, seen_saved),
        seen_few,
        *attention.backward(few, few_saved),
        each,
        *conv2d.backward(each, image, alone, (1, 1), (1, 1), (1, 1), 6),
        gelu.forward(x, "none"),
        softmax.forward(x),
        softmax.forward(x, 0),
        reduce_rows.sum_rows(x),
        reduce_rows.sum_rows(x.reshape(-1, 3)),
        reduce_rows.total(image, (0, 2, 3)),
        philox.normal(1, 2, 3, (300_001,)),
    ]


def test_results_are_the_same_bits_for_any_number_of_threads() -> None:
    found = []
    for n in (1, 2, 5):
        threads.set_num_threads(n)
        generator = np.random.default_rng(0)
        found.append(_everything(lambda *s, g=generator: g.standard_normal(s).astype(np.float32)))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("x", "w", "stride", "groups"),
    [
        ((1, 64, 16, 16), (64, 64, 3, 3), 1, 1),  # one tile, whose channels the threads share
        ((16, 128, 4, 4), (128, 128, 3, 3), 1, 1),
        ((3, 64, 13, 13), (96, 32, 3, 3), 2, 2),
        ((16, 96, 4, 4), (64, 96, 1, 1), 1, 1),
        ((4, 200, 8, 8), (200, 1, 3, 3), 1, 200),  # several channels in a vector
        ((2, 70, 33, 33), (70, 1, 5, 5), 1, 70),
    ],
)
def test_convolutions_of_small_maps_are_the_same_bits_for_any_number_of_threads(
    rand: Any, x: Any, w: Any, stride: int, groups: int
) -> None:
    image, filters, bias = rand(*x), rand(*w), rand(w[0])
    lengths = ((stride, stride), (w[2] // 2, w[3] // 2), (1, 1), groups)
    found = []
    for n in (1, 2, 3, 5):
        threads.set_num_threads(n)
        y = conv2d.forward(image, filters, bias, *lengths)
        found.append([y, *conv2d.backward(y, image, filters, *lengths)])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_kernels_of_several_python_threads_share_the_pool(rand: Any) -> None:
    threads.set_num_threads(3)
    x = rand(1000, 300)
    expected = softmax.forward(x)
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(20):
            if not np.array_equal(softmax.forward(x), expected):
                wrong.append(number)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not wrong


def test_a_forked_child_computes_with_its_own_pool(rand: Any) -> None:
    threads.set_num_threads(2)
    x = rand(1000, 300)
    expected = softmax.forward(x)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if np.array_equal(softmax.forward(x), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_set_num_threads_is_read_back_and_checked() -> None:
    threads.set_num_threads(3)
    assert threads.get_num_threads() == 3
    with pytest.raises(UsageError, match="an int of at least 1, got 0"):
        threads.set_num_threads(0)


def test_numpys_openblas_follows_where_there_are_no_products_of_our_own() -> None:
    setter = blas.function("set_num_threads")
    getter = blas.function("get_num_threads")
    if setter is None or getter is None:
        pytest.skip("this numpy has no OpenBLAS")
    threads.set_num_threads(2)
    assert getter() == (2 if native is None else 1)
    threads.set_num_threads(1)
    assert getter() == 1


@pytest.mark.parametrize(
    ("chosen", "reason"), [("Haswell", "OPENBLAS_CORETYPE=Haswell is set"), (None, "its own choice")]
)
def test_the_description_says_who_chose_the_matrix_kernels(chosen: str | None, reason: str) -> None:
    if blas.function("get_corename") is None:
        pytest.skip("this numpy has no OpenBLAS")
    env = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
    env |= {"OPENBLAS_CORETYPE": chosen} if chosen else {}
    program = "from resilin.core.machine import blas, threads; print(blas.describe())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True, env=env
    )
    assert done.stdout.startswith("BLAS: OpenBLAS with ")
    assert reason in done.stdout
