"""`python -m benchmarks.profiler`."""

import sys

from benchmarks import harness
from benchmarks.profiler import benchmark

sys.exit(harness.main(benchmark))
