"""Page-locked memory: tensors, and the batches of a loader."""

import numpy as np
import pytest

import resilin
from resilin.data import DataLoader

pytestmark = [pytest.mark.usefixtures("cuda"), pytest.mark.filterwarnings("ignore:DataLoader. num_workers=")]


def test_pinned_tensors_hold_the_values_and_say_so():
    tensor = resilin.arange(6.0).reshape(2, 3)
    pinned = tensor.pin_memory()
    assert pinned.tolist() == tensor.tolist()
    assert (tensor.is_pinned(), pinned.is_pinned(), pinned[1:, ::2].is_pinned()) == (False, True, True)
    assert pinned.pin_memory() is pinned


@pytest.mark.parametrize("dtype", ["bool", "bfloat16", "complex64", "int8"])
def test_every_dtype_and_shape_can_be_pinned(dtype):
    for shape in ((), (0, 3), (2, 3)):
        tensor = resilin.ones(shape, dtype=getattr(resilin, dtype))
        pinned = tensor.t().pin_memory() if len(shape) == 2 else tensor.pin_memory()
        assert pinned.is_pinned()
        assert (pinned.dtype, pinned.numel()) == (tensor.dtype, tensor.numel())


def test_what_lies_on_the_device_cannot_be_pinned():
    with pytest.raises(RuntimeError, match="only tensors on the CPU can be pinned, got one on cuda:0"):
        resilin.ones(2).to("cuda").pin_memory()


@pytest.mark.multiproc
@pytest.mark.parametrize(
    "workers", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}], ids=["none", "fork", "thread"]
)
def test_a_loaders_batches_are_pinned(workers):
    samples = [{"x": np.full(2000, i, np.float32), "name": "n"} for i in range(4)]
    for number, batch in enumerate(DataLoader(samples, batch_size=2, pin_memory=True, **workers)):
        assert batch["x"].is_pinned()
        assert batch["x"].to("cuda").cpu()[:, 0].tolist() == [2 * number, 2 * number + 1]
        assert batch["name"] == ["n", "n"]
