"""What a profile may be of: activities, and the kinds of devices that events name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum


class ProfilerActivity(Enum):
    """A group of things to record. Here the CPU's; what a CUDA device does is left out, asking for it warns."""

    CPU = 0
    XPU = 1
    CUDA = 2
    HPU = 3
    MTIA = 4
    PrivateUse1 = 5


class DeviceType(Enum):
    """The kind of device on which an event took place; the numbers are those in trace files."""

    CPU = 0
    CUDA = 1
    MKLDNN = 2
    OPENGL = 3
    OPENCL = 4
    IDEEP = 5
    HIP = 6
    FPGA = 7
    MAIA = 8
    XLA = 9
    Vulkan = 10
    Metal = 11
    XPU = 12
    MPS = 13
    Meta = 14
    HPU = 15
    VE = 16
    Lazy = 17
    IPU = 18
    MTIA = 19
    PrivateUse1 = 20


Activities = Iterable[ProfilerActivity | Mapping[ProfilerActivity, Sequence[str]]]


def supported_activities() -> set[ProfilerActivity]:
    """Return the activities that can be recorded here."""
    return {ProfilerActivity.CPU}


def kineto_available() -> bool:
    """Return whether `profile` writes traces with threads, stacks and arrows: it always does."""
    return True


def parse_activities(activities: Activities) -> tuple[set[ProfilerActivity], dict[ProfilerActivity, set[str]]]:
    """Return the groups that `activities` names, and of those with a list what of them is wanted.

    Raises ValueError for a group that is named twice, TypeError for anything else than groups.
    """
    groups: set[ProfilerActivity] = set()
    wanted: dict[ProfilerActivity, set[str]] = {}
    for item in activities:
        if isinstance(item, ProfilerActivity):
            named: Mapping[ProfilerActivity, Sequence[str] | None] = {item: None}
        elif isinstance(item, Mapping):
            named = item
        else:
            raise TypeError(f"activities: expected ProfilerActivity or dict, got {type(item).__name__}")
        for group, parts in named.items():
            if group in groups:
                raise ValueError(f"activities: {group} specified more than once")
            groups.add(group)
            if parts is not None:
                wanted[group] = set(parts)
    return groups, wanted
