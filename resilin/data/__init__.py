"""Data sets, samplers and loaders with the names of torch.utils.data, and the sampler that elastic training uses.

Names load on first use: the elastic sampler, which every worker needs at its start, does not load multiprocessing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from resilin._base import lazy

if TYPE_CHECKING:
    from resilin.data.collate import default_collate as default_collate
    from resilin.data.collate import default_convert as default_convert
    from resilin.data.dataset import ChainDataset as ChainDataset
    from resilin.data.dataset import ConcatDataset as ConcatDataset
    from resilin.data.dataset import Dataset as Dataset
    from resilin.data.dataset import IterableDataset as IterableDataset
    from resilin.data.dataset import StackDataset as StackDataset
    from resilin.data.dataset import Subset as Subset
    from resilin.data.dataset import TensorDataset as TensorDataset
    from resilin.data.dataset import random_split as random_split
    from resilin.data.distributed import DistributedSampler as DistributedSampler
    from resilin.data.elastic_sampler import ElasticSampler as ElasticSampler
    from resilin.data.elastic_sampler import Shard as Shard
    from resilin.data.elastic_sampler import StepPlan as StepPlan
    from resilin.data.loader import DataLoader as DataLoader
    from resilin.data.sampler import BatchSampler as BatchSampler
    from resilin.data.sampler import RandomSampler as RandomSampler
    from resilin.data.sampler import Sampler as Sampler
    from resilin.data.sampler import SequentialSampler as SequentialSampler
    from resilin.data.sampler import SubsetRandomSampler as SubsetRandomSampler
    from resilin.data.sampler import WeightedRandomSampler as WeightedRandomSampler
    from resilin.data.shard_batches import ShardBatches as ShardBatches
    from resilin.data.worker import WorkerInfo as WorkerInfo
    from resilin.data.worker import get_worker_info as get_worker_info

if TYPE_CHECKING:  # what the table of places adds; written by scripts/type_stubs.py
    from resilin.utils.data import _utils as _utils
    from resilin.utils.data import dataloader as dataloader

# public name -> module that defines it; no module may bear a public name (it would shadow it once imported)
_WHERE = {
    "BatchSampler": "resilin.data.sampler",
    "ChainDataset": "resilin.data.dataset",
    "ConcatDataset": "resilin.data.dataset",
    "DataLoader": "resilin.data.loader",
    "Dataset": "resilin.data.dataset",
    "DistributedSampler": "resilin.data.distributed",
    "ElasticSampler": "resilin.data.elastic_sampler",
    "IterableDataset": "resilin.data.dataset",
    "RandomSampler": "resilin.data.sampler",
    "Sampler": "resilin.data.sampler",
    "SequentialSampler": "resilin.data.sampler",
    "Shard": "resilin.data.elastic_sampler",
    "ShardBatches": "resilin.data.shard_batches",
    "StackDataset": "resilin.data.dataset",
    "StepPlan": "resilin.data.elastic_sampler",
    "Subset": "resilin.data.dataset",
    "SubsetRandomSampler": "resilin.data.sampler",
    "TensorDataset": "resilin.data.dataset",
    "WeightedRandomSampler": "resilin.data.sampler",
    "WorkerInfo": "resilin.data.worker",
    "default_collate": "resilin.data.collate",
    "default_convert": "resilin.data.collate",
    "get_worker_info": "resilin.data.worker",
    "random_split": "resilin.data.dataset",
}

__all__ = [
    "BatchSampler",
    "ChainDataset",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "ElasticSampler",
    "IterableDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "Shard",
    "ShardBatches",
    "StackDataset",
    "StepPlan",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "WorkerInfo",
    "default_collate",
    "default_convert",
    "get_worker_info",
    "random_split",
]


_MODULES = ("dataset", "distributed", "sampler")  # those of torch.utils.data


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        with lazy.lock:
            return importlib.import_module(f"{__name__}.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with lazy.lock:
        value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
