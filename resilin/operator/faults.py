"""Says what became of a pod, and why a job cannot go on, in the words of kubelet, scheduler and API server. Pure.

A fault *counts* towards `maxRestarts` when the pod's own program ended it; what the cluster does to a pod does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from resilin._base.text import visible
from resilin.operator.observed import PodView, Refusal

MESSAGE_CHARS = 1024  # of one message in the status; a termination message may have 4096
_REPORT = "elastic-run: "  # how agents begin what they say; anything else is some program's own text
FINAL = f"{_REPORT}job failed: "
"""How the termination message begins by which an agent says that the job has failed, not its node alone."""
_USAGE, _REFUSED = 2, 5  # exit codes of elastic-run that another start would meet again
_RANK = re.compile(r"\brank (\d{1,9})\b")  # as large as the status has room for
_WORD = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]{0,126}[A-Za-z0-9_])?")  # what conditions and events take as a reason
_STUCK = {
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable",
    "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff",
    "ImageInspectError", "SignatureValidationFailed",
}  # fmt: skip
NOT_PREPARED = frozenset(
    {"FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox", "NetworkNotReady"}
)
"""Of Events: why a kubelet cannot make a pod's containers. Its status does not say so."""


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
    if pod.succeeded:
        return None
    if lost:
        return PodFault(
            cause="NodeLost", counted=False,
            message=f"node {pod.node} does not answer; pod {pod.name} counts as lost and is replaced",
        )  # fmt: skip
    if pod.disruption is not None and (pod.deleting or pod.is_terminal):
        said = pod.disruption.message or f"pod {pod.name} was disrupted"
        cause = word(pod.disruption.reason, "DisruptionTarget")
        return PodFault(cause=cause, message=short(said), counted=False)
    if pod.has_ended:
        return _ended(pod)
    if pod.deleting:
        return PodFault(cause="Deleted", message=f"pod {pod.name} is being deleted", counted=False)
    return None


def _ended(pod: PodView) -> PodFault:
    if pod.exit_code is None:  # the pod as a whole: the kubelet would not run it, or evicted it
        return PodFault(
            cause=word(pod.failure_reason, "PodFailed"), counted=False,
            message=short(pod.message or f"pod {pod.name} failed before its container ended"),
        )  # fmt: skip
    cause = word(pod.ended_reason, "Error")
    counted = not pod.deleting  # who was asked to go and went is not to blame
    lines = [line.strip() for line in pod.message.splitlines() if line.strip()]
    own = f"exit code {pod.exit_code}"
    if pod.ended_container:
        said = f"container {pod.ended_container}: {lines[-1] if lines else own}"
        return PodFault(cause=cause, message=short(said), counted=counted)
    report = next((line for line in lines if line.startswith(_REPORT)), "")
    said = report or (lines[-1] if lines else own)  # what a program says last is why it ended, as in a traceback
    rank = _RANK.search(report)
    by_agent = pod.runs_agent or bool(report)
    return PodFault(
        cause=cause,
        message=short(said),
        counted=counted,
        final=pod.message.startswith(FINAL) or (by_agent and pod.exit_code in (_USAGE, _REFUSED)),
        rank=int(rank[1]) if rank else None,
    )


def stuck(pods: Iterable[PodView], refusals: Iterable[Refusal]) -> tuple[str, str] | None:
    """Return reason and message of what keeps the job from going on, the most telling first; None: nothing does."""
    for refusal in refusals:
        return refusal_reason(refusal), short(f"{refusal.kind} {refusal.name}: {refusal.message}")
    for pod in pods:
        reason, message = pod.waiting
        if (reason in _STUCK or reason in NOT_PREPARED) and not pod.is_terminal:
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
    return word(refusal.reason, "Refused")


def word(text: str, default: str) -> str:
    """Return `text` if it may be a condition's reason, else `default`: with another one no status could be written."""
    return text if _WORD.fullmatch(text) else default


def short(text: str) -> str:
    """Return `text` as one line without what a terminal would obey, cut so that the status stays small."""
    text = visible(" ".join(text.split()))
    return text if len(text) <= MESSAGE_CHARS else text[: MESSAGE_CHARS - 3] + "..."
