"""Data sets, samplers and loaders with the names of torch.utils.data, and the sampler that elastic training uses."""

from resilin.data.collate import default_collate, default_convert
from resilin.data.dataset import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset, random_split
from resilin.data.distributed import DistributedSampler
from resilin.data.elastic_sampler import ElasticSampler, Shard, StepPlan
from resilin.data.loader import DataLoader
from resilin.data.sampler import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from resilin.data.worker import WorkerInfo, get_worker_info

__all__ = [
    "BatchSampler",
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
