"""What `kubectl get elasticjobs` shows of each job."""

from __future__ import annotations

from typing import Any


def printer_columns() -> list[dict[str, Any]]:
    """The columns; those with a priority show with `-o wide` only."""

    def column(name: str, path: str, kind: str, about: str, priority: int = 0) -> dict[str, Any]:
        result = {"name": name, "jsonPath": path, "type": kind, "description": about}
        return {**result, "priority": priority} if priority else result

    def condition(kind: str, field: str) -> str:
        return f'.status.conditions[?(@.type=="{kind}")].{field}'

    return [
        column("Replicas", ".spec.replicas", "integer", "Pods that there are to be."),
        column("Ready", ".status.readyWorkers", "integer", "Pods that are ready."),
        column("Running", condition("Running", "status"), "string", "Whether enough pods are ready."),
        column("Succeeded", condition("Succeeded", "status"), "string", "Whether the job has ended well."),
        column("Failed", condition("Failed", "reason"), "string", "Why the job failed."),
        column("Restarts", ".status.restarts", "integer", "Failures of pods that counted."),
        column("Stalled", condition("Stalled", "reason"), "string", "What keeps the job from going on.", 1),
        column("Worker restarts", ".status.workerRestarts", "integer", "Workers that agents have replaced.", 1),
        column("World", ".status.worldGeneration", "integer", "The generation of the world.", 1),
        column("Last fault", ".status.lastFault.cause", "string", "The last fault.", 1),
        column("On node", ".status.lastFault.node", "string", "Where it happened.", 1),
        column("Age", ".metadata.creationTimestamp", "date", "When the job was created."),
    ]
