"""What the server answers when it refuses: `Failure` carries a Status object as Kubernetes words it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Cause:
    """One field that is wrong: the path, what is wrong with it, and one of Kubernetes' reasons for it."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"

    @property
    def text(self) -> str:
        """The field and what is wrong with it, as messages show them."""
        return f"{self.field}: {self.message}"


class Failure(Exception):
    """A request that is answered with a Status of `code`."""

    def __init__(self, code: int, reason: str, message: str, details: Json | None = None, retry_after: int = 0) -> None:
        super().__init__(message)
        self.code, self.reason, self.retry_after = code, reason, retry_after
        self.details = dict(details or {})
        if retry_after:
            self.details["retryAfterSeconds"] = retry_after

    def status(self) -> Json:
        """The body of the answer."""
        body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": str(self)}
        return {**body, "reason": self.reason, "details": self.details, "code": self.code}


def _named(resource: str, name: str) -> Json:
    plural, _, group = resource.partition(".")
    return {"name": name, "kind": plural, **({"group": group} if group else {})}


def not_found(resource: str, name: str) -> Failure:
    """There is no such object; `resource` is the plural with its group, `elasticjobs.resilin.dev`."""
    return Failure(404, "NotFound", f'{resource} "{name}" not found', _named(resource, name))


def already_exists(resource: str, name: str) -> Failure:
    """The name of an object to be created is taken."""
    return Failure(409, "AlreadyExists", f'{resource} "{name}" already exists', _named(resource, name))


def conflict(resource: str, name: str, why: str) -> Failure:
    """A write was based on something that is no longer so."""
    text = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return Failure(409, "Conflict", text, _named(resource, name))


def invalid(kind: str, group: str, name: str, causes: Sequence[Cause]) -> Failure:
    """An object breaks its schema or a rule; every cause is told."""
    texts = [cause.text for cause in causes]
    shown = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    subject = f"{kind}.{group}" if group else kind
    listed = [{"reason": c.reason, "message": c.message, "field": c.field} for c in causes]
    details = {"name": name, "kind": kind, **({"group": group} if group else {}), "causes": listed}
    return Failure(422, "Invalid", f'{subject} "{name}" is invalid: {shown}', details)


def bad_request(message: str) -> Failure:
    """The request itself makes no sense."""
    return Failure(400, "BadRequest", message)


def expired(message: str) -> Failure:
    """A revision is asked for that the server has forgotten."""
    return Failure(410, "Expired", message)


def unsupported_media(given: str, supported: Sequence[str]) -> Failure:
    """A body in a form that this resource does not take."""
    text = f"the body of the request was in an unknown format - accepted media types include: {', '.join(supported)}"
    return Failure(415, "UnsupportedMediaType", f"{text} (got {given})")
