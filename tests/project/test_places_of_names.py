"""Names that programs for PyTorch reach from the root lie where they look for them."""

import subprocess
import sys

import pytest

import resilin
import resilin.backends.cudnn as cudnn
from resilin.utils.data import DataLoader, Dataset, TensorDataset


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        "utils.data.DataLoader",
        "utils.data.get_worker_info",
        "utils.data.default_collate",
        "utils.data.distributed.DistributedSampler",
        "utils.data.sampler.RandomSampler",
        "data.distributed.DistributedSampler",
        "data.dataset.Subset",
        "utils.dlpack.from_dlpack",
        "utils.dlpack.to_dlpack",
        "backends.cudnn.version",
        "backends.cuda.matmul.allow_tf32",
        "backends.mps.is_available",
    ],
)
def test_a_path_from_the_root_needs_no_other_import(path):
    program = f"import resilin as torch\ntorch.{path}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_utils_data_is_resilins_data():
    assert DataLoader is resilin.data.DataLoader
    assert issubclass(TensorDataset, Dataset)
    assert set(resilin.utils.data.__all__) == set(resilin.data.__all__)
    assert "DataLoader" in dir(resilin.utils.data)
    with pytest.raises(AttributeError, match=r"module 'resilin.data' has no attribute 'datapipes'"):
        resilin.utils.data.datapipes  # noqa: B018


def test_the_switches_of_cudnn_keep_what_they_are_given(monkeypatch):
    monkeypatch.setattr(cudnn, "deterministic", False)
    cudnn.deterministic = True
    assert resilin.backends.cudnn.deterministic is True
    with cudnn.flags(enabled=True, benchmark=True):
        assert (cudnn.enabled, cudnn.benchmark, cudnn.deterministic) == (True, True, False)
    assert (cudnn.enabled, cudnn.benchmark, cudnn.deterministic) == (True, False, True)
    assert cudnn.set_flags(_allow_tf32=True) == (True, False, 10, True, True)
    assert not cudnn.is_available()
    assert cudnn.version() is None


def test_what_is_not_there_says_so():
    assert not resilin.backends.mps.is_available()
    assert not resilin.backends.mps.is_built()
    assert resilin.backends.cuda.matmul.allow_tf32 is False
    assert resilin.backends.cuda.is_built() or not resilin.cuda.is_available()
