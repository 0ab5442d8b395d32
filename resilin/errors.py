"""Every exception that leaves resilin.

    ResilinError (RuntimeError)
    ├── UsageError (also ValueError)      the caller's mistake, found before any work was done
    │   ├── UsageTypeError (also TypeError)   an argument of a wrong type
    │   ├── UsageUnpicklingError (also pickle.UnpicklingError)    a file that asks for more than it may
    │   └── SecretRequired                something would listen beyond loopback without a job secret
    ├── OutOfMemoryError (also MemoryError)   a device's memory is full
    ├── AcceleratorError                  a device, its driver or a library of it failed; carries `error_code`
    ├── KernelError                       a kernel of a device does not compile; names file and line
    ├── NoElements                        elements of a meta tensor were asked for
    ├── LinAlgError                       a matrix that cannot be inverted, factorised or solved with
    ├── RemoteError                       another rank raised what has no class here; carries `rank`, `kind`, traceback
    ├── DistError                         collectives; names as in torch.distributed
    │   ├── NoGroupError (also ValueError)    there is no default group
    │   ├── DistBackendError
    │   │   ├── PeerLost                  a peer died or closed its connection; carries `ranks`
    │   │   │   └── OwnerLost             what an RRef refers to died with its owner
    │   │   ├── CollectiveTimeout         a wait passed its deadline; carries the `ranks` waited for
    │   │   ├── CollectiveMismatch        ranks disagree on shape, dtype, op or order; shows both sides
    │   │   └── GroupAborted              abort() was called, or a rank failed: then also of its error's class
    │   ├── DistNetworkError
    │   │   └── HandshakeError            a stranger, a wrong generation or a wrong secret
    │   └── DistStoreError                the key-value store of one process group
    │       └── QueueEmptyError           queue_pop(block=False) of an empty queue
    ├── RpcError                          remote calls (resilin.distributed.rpc)
    │   └── RpcTimeout                    a call took longer than its caller would wait
    ├── StoreError                        the coordination store (resilin.store)
    │   ├── StoreTimeout                  no endpoint answered within the deadline
    │   ├── StoreAmbiguous                a write was sent, its outcome is unknown: read again
    │   ├── StoreRefused                  wrong secret or user, on either side
    │   ├── Compacted                     a watch's start revision is gone: list again
    │   └── LeaseLost                     the lease ended; its keys are gone
    ├── CheckpointError                   a checkpoint, or a file of tensors, cannot be written or read
    │   ├── CheckpointMismatch            it is of another model: lists what is missing, unexpected, different
    │   ├── CorruptFile                   a file is cut, damaged, or not of its format; carries `path`
    │   ├── UnsafePickle                  a PyTorch file asks for more than tensors; nothing of it was run
    │   └── StorageError (also OSError)   a folder or bucket refused or failed; carries `path` and `errno`
    │       ├── StorageMissing (also FileNotFoundError)   there is no such file, folder or bucket
    │       ├── StorageExists (also FileExistsError)      somebody else has written it already
    │       ├── StorageDenied (also PermissionError)      credentials are missing, wrong, or do not suffice
    │       └── StorageTimeout (also TimeoutError)        it did not answer before the deadline
    ├── ClusterError                      Kubernetes' API server refused or failed; carries `code`, `reason`
    ├── ProcessException                  a process of multiprocessing.spawn failed; carries its number and id
    │   ├── ProcessRaisedException        its function raised: the text has the traceback
    │   └── ProcessExitedException        it exited or was killed; carries `exit_code`, `signal_name`
    └── ElasticError
        ├── WorldChanged                  the generation ended; inside elastic.run the step is redone
        ├── RendezvousError               no agreed world
        │   ├── RendezvousTimeout
        │   └── RendezvousClosed
        ├── StateError                    state could not be made equal, or a hash did not match
        └── ChildFailedError              workers failed for good; carries `failures`

Split by whose fault it is: a user's mistake raises at once, a peer's failure carries data and is recoverable.
No exception of a third-party library leaves the package.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from typing import Any

from resilin._base.text import visible_lines


class ResilinError(RuntimeError):
    """Base of every error that resilin raises on purpose.

    Its text may have names and messages of peers in it: as `str` and in tracebacks they are no commands to a terminal.
    `args` has them as they are.
    """

    def __str__(self) -> str:
        return visible_lines(super().__str__())


class UsageError(ResilinError, ValueError):
    """The caller's mistake: bad argument, bad flag, bad combination."""


class UsageTypeError(UsageError, TypeError):
    """An argument of a wrong type: also a TypeError, which PyTorch raises in such places."""


class UsageKeyError(UsageError, KeyError):
    """Something that the caller should have put under a name is not there: also a KeyError, as in PyTorch."""

    def __str__(self) -> str:
        return visible_lines(Exception.__str__(self))  # KeyError's shows the message in quotes


class UsageUnpicklingError(UsageError, pickle.UnpicklingError):
    """A file that is not read, or not without more trust: also pickle's error, which PyTorch raises there."""


class SecretRequired(UsageError):
    """A socket would listen beyond loopback, but the job has no secret."""


class OutOfMemoryError(ResilinError, MemoryError):
    """A device has no memory left for what was asked for."""


class AcceleratorError(ResilinError):
    """A device, its driver or one of its libraries failed; the message names rank, stream and kernel.

    `error_code` is the number that it gave: CUDA's of an error, or cuBLAS's of a status.
    """

    def __init__(self, message: str, error_code: int = 0) -> None:
        super().__init__(message)
        self.error_code = error_code


class KernelError(ResilinError):
    """A kernel of a device does not compile; the message names file and line."""


class NoElements(ResilinError, NotImplementedError):
    """A meta tensor's elements were asked for, or would decide on a result's shape: it has none."""


class LinAlgError(ResilinError):
    """A matrix is singular, not positive definite, or not finite; the message says which one of the batch."""


class RemoteError(ResilinError):
    """Another rank failed with an exception of a class that is neither Python's nor resilin's: never imported here.

    `rank` is that rank, `kind` the name of the class, `remote_traceback` where it was raised there.
    """

    def __init__(self, message: str, rank: int = -1, kind: str = "", remote_traceback: str = "") -> None:
        super().__init__(message)
        self.rank, self.kind, self.remote_traceback = rank, kind, remote_traceback


class DistError(ResilinError):
    """Base of the errors of collectives and process groups."""


class NoGroupError(DistError, ValueError):
    """There is no default group: also a ValueError, which PyTorch raises there."""


class DistBackendError(DistError):
    """A collective failed."""


class PeerLost(DistBackendError):
    """A peer died or closed its connection. `ranks` are the lost ranks (possibly empty if unknown)."""

    def __init__(self, message: str, ranks: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.ranks = frozenset(ranks)


class OwnerLost(PeerLost):
    """The worker that has what an RRef refers to is gone, and the value with it. `ranks` is its id."""


class CollectiveTimeout(DistBackendError):
    """A collective passed its deadline. `ranks` are those that were waited for, `world_ranks` the same in the world."""

    def __init__(self, message: str, ranks: Iterable[int] = (), world_ranks: Iterable[int] | None = None) -> None:
        super().__init__(message)
        self.ranks = frozenset(ranks)
        self.world_ranks = self.ranks if world_ranks is None else frozenset(world_ranks)


class CollectiveMismatch(DistBackendError):
    """Ranks called different collectives, or the same one with different shapes, dtypes or ops."""


class GroupAborted(DistBackendError):
    """The group was aborted on this rank; every blocked call of the group returned with this.

    Where another rank's error ended the group it is of that error's class, too: `except ValueError` takes it.
    """


class DistNetworkError(DistError):
    """A connection could not be made or broke outside a collective."""


class HandshakeError(DistNetworkError):
    """The other end is not a member of this job and generation, or does not know the secret."""


class DistStoreError(DistError):
    """The key-value store behind `init_process_group` failed or timed out."""


class QueueEmptyError(DistStoreError):
    """`Store.queue_pop(key, block=False)` found nothing in the queue."""


class RpcError(ResilinError):
    """A remote call, or what is around one, failed."""


class RpcTimeout(RpcError):
    """A remote call took longer than its timeout. It may still have run, or be running."""


class StoreError(ResilinError):
    """Base of the errors of the coordination store."""


class StoreTimeout(StoreError):
    """No endpoint of the store answered within the deadline."""


class StoreAmbiguous(StoreError):
    """A write was sent and its outcome is unknown; read the key again before repeating it."""


class StoreRefused(StoreError):
    """The store refused our secret, user or token, or could not prove that it knows the secret itself."""


class Compacted(StoreError):
    """The start revision of a watch was compacted away; `revision` is the oldest one still there."""

    def __init__(self, message: str, revision: int) -> None:
        super().__init__(message)
        self.revision = revision


class LeaseLost(StoreError):
    """The lease ended (expired or revoked); the keys attached to it are gone."""


class CheckpointError(ResilinError):
    """Base of the errors of checkpoints and of files of tensors."""


class CheckpointMismatch(CheckpointError):
    """A checkpoint does not fit the state that it should be loaded into. Lists of paths within the state.

    missing: in the state, not in the checkpoint. unexpected: the other way round. different: in both, with another
    shape, dtype or kind, as `path: what the checkpoint has, what the state has`.
    """

    def __init__(
        self,
        message: str,
        missing: Sequence[str] = (),
        unexpected: Sequence[str] = (),
        different: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.missing, self.unexpected, self.different = tuple(missing), tuple(unexpected), tuple(different)


class CorruptFile(CheckpointError):
    """The file at `path` is cut short, damaged, or not of the format that it should have."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class UnsafePickle(CorruptFile, pickle.UnpicklingError):
    """The PyTorch file at `path` asks for `refused`, which is no tensor or plain container.

    Nothing of it was run, but of classes and functions that the program gave to `serialization.add_safe_globals`.
    """

    def __init__(self, message: str, path: str = "", refused: str = "") -> None:
        super().__init__(message, path)
        self.refused = refused


class StorageError(CheckpointError, OSError):
    """A folder, disk or bucket refused or failed. `path` is what was asked for, `errno` its code where there is one."""

    def __new__(cls, *args: Any, **named: Any) -> StorageError:
        # by lookup it would be RuntimeError's, which cannot make an OSError: copies of errors are made by it
        return OSError.__new__(cls, *args[:1])

    def __init__(self, message: str, path: str = "", errno: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.errno = errno


class StorageMissing(StorageError, FileNotFoundError):
    """There is no such file, folder or bucket."""


class StorageExists(StorageError, FileExistsError):
    """The file is there already: another writer was first."""


class StorageDenied(StorageError, PermissionError):
    """Credentials or permissions are missing, wrong, or do not suffice."""


class StorageTimeout(StorageError, TimeoutError):
    """The storage did not answer before the deadline."""


class ClusterError(ResilinError):
    """Kubernetes' API server refused a call, or it failed."""

    code: int
    """The HTTP status; 0: no answer came, so it is unknown whether a write was done."""
    reason: str
    """As the server names it: NotFound, AlreadyExists, Conflict, Forbidden ..."""
    retry_after_s: float | None
    """When the server wants to be asked again."""

    def __init__(self, said: str, *, code: int = 0, reason: str = "", retry_after_s: float | None = None) -> None:
        self.said = said
        super().__init__(f"{said} ({code} {reason})" if code else said)
        self.code = code
        self.reason = reason
        self.retry_after_s = retry_after_s


class ElasticError(ResilinError):
    """Base of the errors of membership, agents and recovery."""


class WorldChanged(ElasticError):
    """The generation ended while this rank was working. `generation` is the one that ended."""

    def __init__(self, message: str, generation: int) -> None:
        super().__init__(message)
        self.generation = generation


class RendezvousError(ElasticError):
    """Nodes could not agree on a world."""


class RendezvousTimeout(RendezvousError):
    """Too few nodes joined in time."""


class RendezvousClosed(RendezvousError):
    """The job has ended; nobody can join it any more."""


class StateError(ElasticError):
    """State could not be made equal on all ranks: no intact source, or a hash did not match."""


class ChildFailedError(ElasticError):
    """Workers failed for good. `failures` holds one record per failed worker, the first cause first."""

    def __init__(self, message: str, failures: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.failures = tuple(failures)


class ProcessException(ResilinError):
    """A process of `multiprocessing.spawn` failed: number `error_index`, whose id was `error_pid`."""

    def __init__(self, msg: str, error_index: int, error_pid: int) -> None:
        super().__init__(msg)
        self.msg = msg
        self.error_index = error_index
        self.error_pid = error_pid

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.msg, self.error_index, self.error_pid)


class ProcessRaisedException(ProcessException):
    """The function of the process raised; its traceback is in the text."""


class ProcessExitedException(ProcessException):
    """The process ended by itself with `exit_code`, or by the signal `signal_name`."""

    def __init__(
        self, msg: str, error_index: int, error_pid: int, exit_code: int, signal_name: str | None = None
    ) -> None:
        super().__init__(msg, error_index, error_pid)
        self.exit_code = exit_code
        self.signal_name = signal_name

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.msg, self.error_index, self.error_pid, self.exit_code, self.signal_name)
