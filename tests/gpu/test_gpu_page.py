"""docs/gpu.md lists what is computed on the host, exactly."""

import re
from pathlib import Path

import resilin.nn.functional  # noqa: F401 - declares what is on the host, as the next does
from resilin.core.api.conversion import through_host
from resilin.core.backends.cupy_names import SPECIAL
from resilin.core.ops.registry import OPS
from resilin.core.public import names  # noqa: F401
from resilin.testing import coverage

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "gpu.md").read_text()


def test_the_page_lists_the_ops_and_functions_that_run_on_the_host():
    coverage.load()
    table = PAGE.partition("## What is computed on the host")[2].partition("Of `cupyx.scipy.special`")[0]
    listed = re.findall(r"`(\w+)`", "".join(line.rpartition("|")[0].rpartition("|")[2] for line in table.splitlines()))
    on_host = {name for name, op in OPS.items() if op.host} - set(SPECIAL)
    assert sorted(listed) == sorted([*on_host, *through_host.FUNCTIONS])


def test_the_page_lists_the_special_functions_that_run_on_the_device():
    line = next(line for line in PAGE.splitlines() if line.startswith("Of `cupyx.scipy.special`"))
    assert tuple(re.findall(r"`(\w+)`", line)) == SPECIAL
    coverage.load()
    assert all(OPS[name].host for name in SPECIAL)
