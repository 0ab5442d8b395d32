"""Says what became of a pod, and why a job cannot go on, in the words of kubelet, scheduler and API server. Pure.

A fault *counts* towards `maxRestarts` when the pod's own program ended it; what the cluster does to a pod does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from resilin.operator.observed import PodView, Refusal

MESSAGE_CHARS = 1024  # of one message in the status; a termination message may have 4096
FINAL = "elastic-run: job failed: "
"""How the termination message begins by which an agent says that the job has failed, not its node alone."""
_USAGE, _REFUSED = 2, 5  # exit codes of elastic-run that another start would meet again
_RANK = re.compile(r"\brank (\d+)\b")
_STUCK = {
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable",
    "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff",
    "ImageInspectError", "SignatureValidationFailed",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PodFault:
    """What ended a pod."""

    cause: str
    """CamelCase, a reason of the kubelet's where it gave one: OOMKilled, Evicted, NodeLost, Deleted, Error ..."""
    message: str
    counted: bool
    final: bool = False
    """Whether the job has failed with it."""
    rank: int | None = None


def of(pod: PodView, *, lost: bool) -> PodFault | None:
    """Return what ended `pod` (or is about to), None where nothing did: it runs, or has succeeded."""
    if pod.phase == "Succeeded":
        return None
    if lost:
        return PodFault(
            cause="NodeLost", counted=False,
            message=f"node {pod.node} does not answer; pod {pod.name} counts as lost and is replaced",
        )  # fmt: skip
    if pod.disruption is not None and (pod.deleting or pod.is_terminal):
        said = pod.disruption.message or f"pod {pod.name} was disrupted"
        return PodFault(cause=pod.disruption.reason or "DisruptionTarget", message=short(said), counted=False)
    if pod.is_terminal:
        return _ended(pod)
    if pod.deleting:
        return PodFault(cause="Deleted", message=f"pod {pod.name} is being deleted", counted=False)
    return None


def _ended(pod: PodView) -> PodFault:
    if pod.exit_code is None:  # the pod as a whole: the kubelet would not run it, or evicted it
        return PodFault(
            cause=pod.failure_reason or "PodFailed", counted=False,
            message=short(pod.message or f"pod {pod.name} failed before its container ended"),
        )  # fmt: skip
    said = first_line(pod.message) or f"exit code {pod.exit_code}"
    rank = _RANK.search(said)
    return PodFault(
        cause=pod.ended_reason or "Error",
        message=short(said),
        counted=not pod.deleting,  # who was asked to go and went is not to blame
        final=pod.message.startswith(FINAL) or pod.exit_code in (_USAGE, _REFUSED),
        rank=int(rank[1]) if rank else None,
    )


def stuck(pods: Iterable[PodView], refusals: Iterable[Refusal]) -> tuple[str, str] | None:
    """Return reason and message of what keeps the job from going on, the most telling first; None: nothing does."""
    for refusal in refusals:
        return refusal_reason(refusal), short(f"{refusal.kind} {refusal.name}: {refusal.message}")
    for pod in pods:
        reason, message = pod.waiting
        if reason in _STUCK and not pod.is_terminal:
            return reason, short(f"pod {pod.name}: {message or reason}")
    for pod in pods:
        if pod.unschedulable and not pod.is_terminal:
            return "Unschedulable", short(f"pod {pod.name}: {pod.unschedulable}")
    return None


def refusal_reason(refusal: Refusal) -> str:
    """Return a CamelCase reason for what the API server would not do."""
    if "exceeded quota" in refusal.message:
        return "QuotaExceeded"
    if refusal.reason == "FieldManagerConflict":
        return "FieldConflict"
    if "admission webhook" in refusal.message or "violates PodSecurity" in refusal.message:
        return "AdmissionRefused"
    return refusal.reason or "Refused"


def first_line(text: str) -> str:
    """Return the first line that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def short(text: str) -> str:
    """Return `text`, cut so that the status stays small."""
    text = " ".join(text.split())
    return text if len(text) <= MESSAGE_CHARS else text[: MESSAGE_CHARS - 3] + "..."
