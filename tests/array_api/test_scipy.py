"""A library that is written for the standard: scipy's functions take tensors and give tensors."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import numpy as np
import resilin
from scipy import fft, integrate, special, stats
from scipy.cluster import vq

x = resilin.arange(12.0, dtype=resilin.float64).reshape(3, 4) + 1
calls = {
    "logsumexp": lambda x: special.logsumexp(x, axis=1),
    "softmax": lambda x: special.softmax(x, axis=1),
    "xlogy": lambda x: special.xlogy(x, x),
    "zscore": stats.zscore,
    "gmean": stats.gmean,
    "kurtosis": stats.kurtosis,
    "ttest": lambda x: stats.ttest_1samp(x, 1.0).pvalue,
    "whiten": vq.whiten,
    "vq": lambda x: vq.vq(x, x[:2])[0],
    "rfftn": fft.rfftn,
    "trapezoid": integrate.trapezoid,
}
for name, call in calls.items():
    found = call(x)
    assert isinstance(found, resilin.Tensor), (name, type(found))
    np.testing.assert_allclose(found.numpy(), call(x.numpy()), rtol=1e-9, atol=1e-12, err_msg=name)
print(len(calls))
"""


@pytest.mark.slow
def test_functions_of_scipy_take_tensors_and_give_what_they_give_for_arrays():
    pytest.importorskip("scipy", minversion="1.17", reason="in older versions fewer functions follow the standard")
    env = os.environ | {"SCIPY_ARRAY_API": "1"}
    run = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "11"
