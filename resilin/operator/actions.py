"""What `reconcile` may ask for. Carried out in order; the first that fails ends the turn. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Manifest = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Create:
    """Make an object that must not be there yet."""

    kind: str
    name: str
    manifest: Manifest = field(repr=False)

    @property
    def kind_and_name(self) -> tuple[str, str]:
        """Which object it is about."""
        return self.kind, self.name


@dataclass(frozen=True, kw_only=True)
class CreateSecret:
    """Have the Secret with the job's secret be there. Nobody reads it, so that it is there is learned by this, too."""

    name: str
    manifest: Manifest = field(repr=False)
    """Without the secret itself."""
    key: str
    in_use: bool
    """Whether pods have the secret that was in it: then it is made with that one again, or not at all."""

    @property
    def kind_and_name(self) -> tuple[str, str]:
        """Which object it is about."""
        return "Secret", self.name


@dataclass(frozen=True, kw_only=True)
class Apply:
    """Make an object's fields what the manifest says, as field manager of ours and never by force."""

    kind: str
    name: str
    manifest: Manifest = field(repr=False)
    key: str
    """Stands for the manifest and the state that it was compared with: what was refused is not tried again as long as
    it is the same."""

    @property
    def kind_and_name(self) -> tuple[str, str]:
        """Which object it is about."""
        return self.kind, self.name


@dataclass(frozen=True, kw_only=True)
class Delete:
    """Ask for an object's end, of exactly the object with this uid."""

    kind: str
    name: str
    uid: str
    grace_s: int | None = None
    """None: what the object says. 0: without the word of its kubelet."""
    why: str = ""
    resource_version: str = ""
    """Where the end depends on what the object says: only if it still is of this version."""

    @property
    def kind_and_name(self) -> tuple[str, str]:
        """Which object it is about."""
        return self.kind, self.name


@dataclass(frozen=True, kw_only=True)
class PatchStatus:
    """Replace the job's status, if the job is still that of `resource_version`."""

    status: Manifest = field(repr=False)
    resource_version: str


@dataclass(frozen=True, kw_only=True)
class SetFinalizers:
    """Replace the job's finalizers, if the job is still that of `resource_version`."""

    finalizers: tuple[str, ...]
    resource_version: str


@dataclass(frozen=True, kw_only=True)
class Emit:
    """Tell people: an Event about the job. Its failure ends nothing."""

    type: str
    """Normal or Warning."""
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Requeue:
    """Look again after so many seconds: time alone changes what is to be done."""

    after_s: float


Action = Create | CreateSecret | Apply | Delete | PatchStatus | SetFinalizers | Emit | Requeue
