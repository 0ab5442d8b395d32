"""Names that DistributedDataParallel had before."""

import pytest

import resilin
import resilin.distributed as dist
from resilin.nn.parallel import DistributedDataParallel, DistributedDataParallelCPU


def test_the_name_of_the_cpus_wrapper_is_the_wrapper_and_warns():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.warns(FutureWarning, match="DistributedDataParallelCPU` is deprecated"):
            model = DistributedDataParallelCPU(resilin.nn.Linear(2, 1))
        assert isinstance(model, DistributedDataParallel)
        model(resilin.ones(1, 2)).sum().backward()
        assert model.module.weight.grad.tolist() == [[1.0, 1.0]]
    finally:
        dist.destroy_process_group()


def test_reduce_op_is_reduceop_and_warns():
    with pytest.warns(FutureWarning, match=r"please use `torch.distributed.ReduceOp`"):
        assert dist.reduce_op.SUM is dist.ReduceOp.SUM
