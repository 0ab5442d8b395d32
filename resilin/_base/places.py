"""Say where the names of PyTorch's import places live here: one table from place to home. Pure data, no imports.

A program for PyTorch is ported by writing `resilin` for `torch` in its imports. Most places are modules of their own;
those whose code lives elsewhere, often on a higher floor, are entries of these tables. A part that is new adds a line;
`place_finder.py` makes the import system follow it. Paths are below `resilin`.
"""

from __future__ import annotations

# A place that is another module under PyTorch's name, with all that is below it: place -> home.
SAME: dict[str, str] = {
    "distributed": "dist",
    "distributed.algorithms.ddp_comm_hooks": "ddp.comm_hooks",
    "distributed.algorithms.model_averaging": "ddp.model_averaging",
    "distributed.checkpoint": "checkpoint",
    "distributed.distributed_c10d": "dist",
    "distributed.elastic": "elastic",
    "distributed.launch": "launcher.entry",
    "distributed.launcher.api": "launcher.api",
    "distributed.run": "launcher.entry",
    "cuda.random": "cuda",
    "utils.data": "data",
}

_BATCH_NORM = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm")
_LAZY_BATCH_NORM = ("LazyBatchNorm1d", "LazyBatchNorm2d", "LazyBatchNorm3d")
_INSTANCE_NORM = ("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d")
_LAZY_INSTANCE_NORM = ("LazyInstanceNorm1d", "LazyInstanceNorm2d", "LazyInstanceNorm3d")
_FUNCTIONAL = (
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "block_diag",
    "broadcast_shapes",
    "broadcast_tensors",
    "cartesian_prod",
    "cdist",
    "chain_matmul",
    "einsum",
    "istft",
    "meshgrid",
    "norm",
    "split",
    "stft",
    "tensordot",
    "unique",
    "unique_consecutive",
    "unravel_index",
)
_CUDA_MEMORY = (
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
)
_OLDER = ("lu", "pca_lowrank", "svd_lowrank")

# A place that gathers names of other modules: place -> {name: home}.
GATHERED: dict[str, dict[str, str]] = {
    "autograd.anomaly_mode": dict.fromkeys(("detect_anomaly", "set_detect_anomaly"), "autograd"),
    "autograd.variable": {"Variable": "autograd"},
    "cuda.amp": {"GradScaler": "amp"},
    "cuda.amp.grad_scaler": {"GradScaler": "amp"},
    "cuda.memory": dict.fromkeys(_CUDA_MEMORY, "cuda"),
    "cuda.streams": dict.fromkeys(("Event", "Stream"), "cuda"),
    "distributed.constants": {"default_pg_timeout": "dist"},
    "distributed.elastic.multiprocessing": {},  # a package for `errors`
    "distributed.elastic.multiprocessing.errors": {"ChildFailedError": "errors", "record": "elastic"},
    "distributed.launcher": dict.fromkeys(("LaunchConfig", "elastic_launch", "launch_agent"), "launcher.api"),
    "distributed.optim": {"PostLocalSGDOptimizer": "ddp.model_averaging", "ZeroRedundancyOptimizer": "zero"},
    "distributed.optim.post_localSGD_optimizer": {"PostLocalSGDOptimizer": "ddp.model_averaging"},
    "distributed.optim.zero_redundancy_optimizer": {"ZeroRedundancyOptimizer": "zero"},
    "functional": dict.fromkeys(_FUNCTIONAL, "core.public.names") | dict.fromkeys(_OLDER, "linalg.older"),
    "nn.modules.batchnorm": dict.fromkeys((*_BATCH_NORM, *_LAZY_BATCH_NORM), "nn"),
    "nn.modules.channelshuffle": {"ChannelShuffle": "nn"},
    "nn.modules.fold": dict.fromkeys(("Fold", "Unfold"), "nn"),
    "nn.modules.instancenorm": dict.fromkeys((*_INSTANCE_NORM, *_LAZY_INSTANCE_NORM), "nn"),
    "nn.modules.pixelshuffle": dict.fromkeys(("PixelShuffle", "PixelUnshuffle"), "nn"),
    "nn.parallel": {"DataParallel": "nn", "DistributedDataParallel": "ddp"},
    "nn.parallel.distributed": {"DistributedDataParallel": "ddp"},
    "optim.adadelta": {"Adadelta": "optim"},
    "optim.adagrad": {"Adagrad": "optim"},
    "optim.adamax": {"Adamax": "optim"},
    "optim.adamw": {"AdamW": "optim"},
    "optim.asgd": {"ASGD": "optim"},
    "optim.nadam": {"NAdam": "optim"},
    "optim.radam": {"RAdam": "optim"},
    "optim.rmsprop": {"RMSprop": "optim"},
    "optim.rprop": {"Rprop": "optim"},
    "serialization": dict.fromkeys(("load", "save"), "core.serialize"),
    "utils.data.dataloader": dict.fromkeys(
        ("DataLoader", "default_collate", "default_convert", "get_worker_info"), "data"
    ),
    "utils.hooks": {"RemovableHandle": "core.state.hooks"},
}

# A place of PyTorch that has nothing here yet: place -> what there is instead.
ABSENT: dict[str, str] = {
    "compiler": "nothing is compiled here: call the model as it is",
    "distributed.autograd": "resilin has no RPC yet",
    "distributed.device_mesh": "groups are made by resilin.distributed.new_group or new_subgroups",
    "distributed.fsdp": "resilin.zero.shard divides parameters, gradients and optimizer state",
    "distributed.nn": "resilin.distributed has the collectives, without gradients",
    "distributed.pipelining": "resilin has no pipelines yet",
    "distributed.rpc": "resilin has no RPC yet",
    "distributed.tensor": "resilin.zero.shard divides parameters, gradients and optimizer state",
    "distributions": "resilin has the random functions of the root, e.g. resilin.normal",
    "export": "resilin.checkpoint.save_safetensors writes weights that other libraries read",
    "fx": "resilin has no tracer yet",
    "jit": "nothing is compiled here: call the model as it is",
    "multiprocessing": "Python's own multiprocessing, or elastic-run, starts the processes",
    "onnx": "resilin.checkpoint.save_safetensors writes weights that other libraries read",
    "pipeline": "resilin has no pipelines yet",
    "profiler": "resilin has no profiler yet",
    "quantization": "resilin has no quantization",
    "rpc": "resilin has no RPC yet",
    "sparse": "resilin has dense tensors",
    "utils.tensorboard": "the package tensorboardX writes event files",
}


def home_of(place: str) -> str | None:
    """Return the module that `place`, a path below the root, is another name of; None where it is none.

    A place below one that has another name lies below its home: `distributed.algorithms.join` is
    `dist.algorithms.join`. The longest entry counts.
    """
    head, tail = place, ""
    while head:
        if head in SAME:
            return SAME[head] + tail
        head, dot, last = head.rpartition(".")
        tail = dot + last + tail
        if head in GATHERED:
            return None
    return None


def roots() -> frozenset[str]:
    """Return the places directly below the root, which are attributes of it."""
    return frozenset(place for place in (*SAME, *GATHERED) if "." not in place)
