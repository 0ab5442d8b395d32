"""`python -m benchmarks.kubernetes`."""

import sys

from benchmarks import harness
from benchmarks.kubernetes import benchmark

sys.exit(harness.main(benchmark))
