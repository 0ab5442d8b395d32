"""What every object has: its name, labels and owners, checked as a server checks them. Pure but for random names."""

from __future__ import annotations

import datetime
import re
import secrets
import uuid
from collections.abc import Iterator
from typing import Any

from resilin.testing.kube.failures import Cause, Json

_LABEL_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_PATH_SEGMENT = re.compile(r"[^/%]+")  # of names of RBAC's objects, such as system:node
_RANDOM = "bcdfghjklmnpqrstvwxz2456789"
_ANNOTATIONS_BYTES = 256 << 10
_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com')"
)
_LABEL_TEXT = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name', or 'abc-123')"
)

# How objects of a kind may be called: the pattern, the greatest length, and what to say. Others: a subdomain.
_SUBDOMAIN_RULE = (_SUBDOMAIN, 253, _SUBDOMAIN_TEXT)
_NAMES = {
    "Service": (_LABEL_1035, 63, _LABEL_TEXT),
    "Namespace": (_LABEL_1123, 63, _SUBDOMAIN_TEXT),
    **dict.fromkeys(
        ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"),
        (_PATH_SEGMENT, 253, "may not be '.', contain '/' or '%'"),
    ),
}


def now(after_s: int = 0) -> str:
    """The time, or one so many seconds later, in the form of `creationTimestamp`."""
    return _text(datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=after_s))


def later(time: str, seconds: int) -> str:
    """A time, moved."""
    return _text(datetime.datetime.fromisoformat(time) + datetime.timedelta(seconds=seconds))


def _text(time: datetime.datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def name_from(prefix: str) -> str:
    """A name for `generateName`."""
    return prefix[:58] + "".join(secrets.choice(_RANDOM) for _ in range(5))


def stamp(metadata: Json) -> None:
    """Fill in what the server alone decides when an object is created, in place."""
    for field in ("resourceVersion", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"):
        metadata.pop(field, None)
    metadata["uid"] = str(uuid.uuid4())
    metadata["creationTimestamp"] = now()


def check(kind: str, metadata: Json) -> list[Cause]:
    """What is wrong with the metadata of an object of that kind."""
    return [*_name(kind, metadata.get("name")), *_labels(metadata), *_annotations(metadata), *_owners(metadata)]


def _name(kind: str, name: Any) -> Iterator[Cause]:
    if not name:
        yield Cause("metadata.name", "Required value: name or generateName is required", "FieldValueRequired")
        return
    pattern, most, text = _NAMES.get(kind, _SUBDOMAIN_RULE)
    if len(name) > most:
        yield Cause("metadata.name", f'Invalid value: "{name}": must be no more than {most} characters')
    elif not pattern.fullmatch(name):
        yield Cause("metadata.name", f'Invalid value: "{name}": {text}')


def _labels(metadata: Json) -> Iterator[Cause]:
    for key, value in (metadata.get("labels") or {}).items():
        yield from _key("metadata.labels", key)
        if not isinstance(value, str) or len(value) > 63 or (value and not _QUALIFIED.fullmatch(value)):
            text = "a valid label must be empty or consist of at most 63 alphanumeric characters, '-', '_' or '.'"
            yield Cause("metadata.labels", f'Invalid value: "{value}": {text}')


def _annotations(metadata: Json) -> Iterator[Cause]:
    annotations = metadata.get("annotations") or {}
    for key in annotations:
        yield from _key("metadata.annotations", key)
    if sum(len(key) + len(value) for key, value in annotations.items()) > _ANNOTATIONS_BYTES:
        yield Cause("metadata.annotations", f"Too long: may not be more than {_ANNOTATIONS_BYTES} bytes")


def _key(field: str, key: str) -> Iterator[Cause]:
    prefix, slash, name = key.rpartition("/")
    if len(name) > 63 or not _QUALIFIED.fullmatch(name):
        text = "name part must consist of alphanumeric characters, '-', '_' or '.', and be at most 63 characters long"
        yield Cause(field, f'Invalid value: "{key}": {text}')
    if slash and (len(prefix) > 253 or not _SUBDOMAIN.fullmatch(prefix)):
        yield Cause(field, f'Invalid value: "{key}": prefix part {_SUBDOMAIN_TEXT}')


def _owners(metadata: Json) -> Iterator[Cause]:
    controllers = 0
    for index, owner in enumerate(metadata.get("ownerReferences") or ()):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                where = f"metadata.ownerReferences[{index}].{field}"
                yield Cause(where, 'Invalid value: "": must not be empty')
        controllers += owner.get("controller") is True
    if controllers > 1:
        yield Cause("metadata.ownerReferences", "Invalid value: Only one reference can have Controller set to true")
