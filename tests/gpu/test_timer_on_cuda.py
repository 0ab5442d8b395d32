"""Timer and fuzzed tensors on a device."""

from typing import Any

import pytest

import resilin
from resilin.utils.benchmark import FuzzedParameter, FuzzedTensor, Fuzzer, Timer


def test_each_time_is_taken_when_the_device_is_done(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    synchronize = cuda.synchronize
    monkeypatch.setattr(cuda, "synchronize", lambda index: (waited.append(index), synchronize(index)))
    x = resilin.ones(64, 64, device="cuda")
    one = Timer("x @ x", globals={"x": x}).timeit(10)
    assert waited == [0] * 4  # before and after the warm-up, and before and after what counts
    assert one.median > 0


def test_a_fuzzed_tensor_lies_on_the_device(cuda: Any) -> None:
    fuzzer = Fuzzer(
        parameters=[FuzzedParameter("n", minval=4, maxval=9, distribution="uniform")],
        tensors=[FuzzedTensor("x", size=("n", "n"), probability_contiguous=0.0, cuda=True)],
        seed=1,
    )
    for tensors, properties, parameters in fuzzer.take(2):
        x, n = tensors["x"], parameters["n"]
        assert (x.device.type, tuple(x.shape), x.is_contiguous()) == ("cuda", (n, n), False)
        assert properties["x"]["order"].tolist() == [1, 0]
