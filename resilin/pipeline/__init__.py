"""Pipeline parallelism: a model in stages on several ranks, batches in micro-batches. See README.md."""

from resilin.pipeline.clipping import clip_grad_norm_
from resilin.pipeline.cutting import Pipe, PipeInfo, SplitPoint, build_stage, pipe_split, pipeline
from resilin.pipeline.elastic_pipeline import ElasticPipeline
from resilin.pipeline.microbatch import TensorChunkSpec, merge_chunks, split_args_kwargs_into_chunks
from resilin.pipeline.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
    get_schedule_class,
)
from resilin.pipeline.stage import PipelineStage

__all__ = [
    "ElasticPipeline",
    "Pipe",
    "PipeInfo",
    "PipelineScheduleMulti",
    "PipelineScheduleSingle",
    "PipelineStage",
    "Schedule1F1B",
    "ScheduleDualPipeV",
    "ScheduleGPipe",
    "ScheduleInterleaved1F1B",
    "ScheduleInterleavedZeroBubble",
    "ScheduleLoopedBFS",
    "ScheduleZBVZeroBubble",
    "SplitPoint",
    "TensorChunkSpec",
    "build_stage",
    "clip_grad_norm_",
    "get_schedule_class",
    "merge_chunks",
    "pipe_split",
    "pipeline",
    "split_args_kwargs_into_chunks",
]
