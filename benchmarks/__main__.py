"""`python -m benchmarks`: run every benchmark, one after the other."""

from __future__ import annotations

import sys

from benchmarks import (
    allocator,
    checkpoint,
    collectives,
    collectives_hosts,
    comm_hooks,
    cost_model,
    cuda_launch,
    data_loader,
    ddp_step,
    dist_overhead,
    half_products,
    harness,
    install_size,
    kubernetes,
    models_step,
    models_wide,
    node_changes,
    op_overhead,
    pipeline,
    profiler,
    recovery,
    rendezvous_agents,
    rpc,
    rpc_lending,
    shard_mode,
    simulated_agents,
    startup,
    store_front,
    train_step,
    zero,
    zero_shards,
)

ALL = [
    startup,
    install_size,
    collectives,
    collectives_hosts,
    comm_hooks,
    dist_overhead,
    cost_model,
    op_overhead,
    half_products,
    train_step,
    ddp_step,
    models_step,
    models_wide,
    allocator,
    cuda_launch,
    data_loader,
    shard_mode,
    zero,
    zero_shards,
    checkpoint,
    pipeline,
    profiler,
    recovery,
    node_changes,
    kubernetes,
    simulated_agents,
    rendezvous_agents,
    rpc,
    store_front,
    rpc_lending,
]


def run_all() -> int:
    """Every benchmark with the same options; a failure shows in the exit code and does not stop the others."""
    if any(argument.startswith("--json") for argument in sys.argv[1:]):
        print("--json works with one benchmark at a time: python -m benchmarks.NAME --json FILE", file=sys.stderr)
        return harness.USAGE
    worst = 0
    for module in ALL:
        code = harness.main(module.benchmark)
        if code == harness.USAGE:  # the others have the same options
            return code
        worst = max(worst, code)
    return worst


if __name__ == "__main__":
    sys.exit(run_all())
