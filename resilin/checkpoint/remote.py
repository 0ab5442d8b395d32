"""`FsspecStorage`: buckets, and whatever else has a URL that fsspec knows. The one file that imports fsspec."""

from __future__ import annotations

import contextlib
import errno
import importlib
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, NoReturn, TypeVar

from resilin._base import fault_points
from resilin._base.clock import SYSTEM, Clock, Deadline, spell
from resilin.checkpoint.storage import LEFTOVER, Item, Storage, Writing, checked
from resilin.errors import (
    CorruptFile,
    StorageDenied,
    StorageError,
    StorageExists,
    StorageMissing,
    StorageTimeout,
    UsageError,
)

T = TypeVar("T")

PART_BYTES = 32 << 20  # of an upload in parts, of which S3 takes 10000: files of up to 320 GB
_DELETED_AT_ONCE = 16  # files of a folder in a bucket, where each takes a request
_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 5.0
_APPEARS_WHOLE = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "az"})  # an object is there when its upload is complete
_S3 = frozenset({"s3", "s3a"})
_SLASHES = re.compile(rf"((?:{'|'.join(sorted(_APPEARS_WHOLE))})://[^/]+)//+")  # between a bucket and a name
_BUCKET = re.compile(r"[\w.:@-]+")  # ":" is of S3's access points, "@" of Azure's accounts
_CUT = re.compile(r"::(?![a-z][a-z0-9+.-]*://)")  # not before another URL
_FOLDER = re.compile(r"(?:^|::)dir(?=::|://)")
_REWRITTEN = re.compile(r"\?versionId=|[\t\r\n]")
_TRANSIENT = frozenset(
    {errno.EBUSY, errno.ETIMEDOUT, errno.ECONNRESET, errno.ECONNREFUSED, errno.EPIPE, errno.EAGAIN, errno.EHOSTUNREACH}
)
_VERSION = ("ETag", "etag", "md5Hash", "generation", "LastModified", "mtime", "modified", "created", "size")
_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "TokenRetrievalError")
_NETWORK = ("botocore.", "aiobotocore.", "aiohttp.", "urllib3.", "requests.", "fsspec.")


class FsspecStorage(Storage):
    """Files under a URL, through fsspec's file system for it.

    url:       as "s3://bucket/run7", "memory://run7".
    options:   arguments of the file system. Credentials are better left to where its package looks for them itself
               (environment, configuration files, the machine's role).
    timeout_s: how long one operation may take with all its attempts, in seconds; of a file that is written, each part.
    attempts:  how often an operation is tried that failed for a reason that may pass: the connection broke, the server
               answered with 5xx, asked to slow down, or not at all. Between attempts it waits 0.1 s and then twice as
               long each time, up to 5 s, shortened at random so that ranks do not come back together.

    Several slashes after a bucket are one, as of f"s3://{bucket}/{prefix}/run" with an empty prefix: names that begin
    with a slash cannot be listed by s3fs. Elsewhere in a name a bucket takes them as they are.

    Nothing is cached, listings neither. An object appears in a bucket when its upload is complete; elsewhere a file is
    written under another name and moved. Uploads in parts that were never completed are kept, and paid for, by S3 until
    they are deleted: give the bucket a lifecycle rule for them.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any] | None = None,
        timeout_s: float = 60.0,
        attempts: int = 5,
        clock: Clock = SYSTEM,
    ) -> None:
        if timeout_s <= 0 or attempts < 1:
            raise UsageError(f"FsspecStorage: timeout_s and attempts are above 0, got {timeout_s} and {attempts}")
        url = _SLASHES.sub(r"\1/", url, count=1)
        self.root = url.rstrip("/") if url.rpartition("://")[2].strip("/") else url
        self._timeout_s, self._clock = timeout_s, clock
        self._fs, self._base = _file_system(url, dict(options or {}), timeout_s, attempts)
        protocols = self._fs.protocol if isinstance(self._fs.protocol, tuple | list) else (self._fs.protocol,)
        self._appears_whole = not _APPEARS_WHOLE.isdisjoint(protocols)
        self._attempts = attempts
        if not _S3.isdisjoint(protocols):  # botocore tries again itself, but for an answer that breaks off
            self._attempts = min(attempts, 2)
            self._fs.retries = 1

    def _path(self, name: str) -> str:
        return f"{self._base.rstrip('/')}/{checked(name)}" if name else self._base

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[Writing]:
        """As `Storage.writing`."""
        path = self._path(name)
        target = path if self._appears_whole else f"{path}{LEFTOVER}{random.getrandbits(48):012x}"
        if not self._appears_whole:
            self._try(name, "written", lambda: self._fs.makedirs(self._fs._parent(path), exist_ok=True))
        with self._told(name, "written"):
            file = self._fs.open(target, "wb", block_size=PART_BYTES)
        try:
            yield _Remote(self, name, file)
            with self._told(name, "written"):
                file.close()
        except BaseException:
            self._drop(file, target)
            raise
        if target != path:
            self._try(name, "written", lambda: self._move(target, path))

    def _move(self, source: str, target: str) -> None:
        if self._fs.mv.__module__ != "fsspec.spec":  # a file system's own renames what is called so
            self._fs.mv(source, target)
        else:  # the one that they inherit takes names for patterns
            self._fs.cp_file(source, target)
            self._fs.rm_file(source)

    def _drop(self, file: Any, target: str) -> None:
        """End an upload for good: closing it, as its deletion would, completes what is half there."""
        with contextlib.suppress(Exception):  # as in `_translate`; the reason for the end is being raised already
            if self._appears_whole:
                file.discard()
            else:
                self._fs.rm_file(target)
        with contextlib.suppress(AttributeError):  # of files that are not closed by being deleted
            file.closed = True

    def create(self, name: str, data: bytes) -> None:
        """As `Storage.create`."""
        path = self._path(name)

        def create() -> None:
            try:
                self._fs.pipe_file(path, data, mode="create")
            except FileExistsError:
                if self._fs.cat_file(path) != data:  # else this one made it: an earlier attempt's answer was lost
                    raise

        if not self._appears_whole:
            self._try(name, "created", lambda: self._fs.makedirs(self._fs._parent(path), exist_ok=True))
        self._try(name, "created", create)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """As `Storage.read`."""
        path = self._path(name)
        if stop is not None and stop <= start:
            return b""
        first = start or None  # an empty file has no range that starts at 0
        try:
            data: bytes = self._try(name, "read", lambda: self._fs.cat_file(path, start=first, end=stop))
        except StorageError as error:
            if stop is not None and error.errno == errno.EINVAL:  # S3's answer for a range beyond the end
                raise self._short(name, stop) from None
            raise
        if stop is not None and len(data) != stop - start:
            raise self._short(name, stop)
        return data

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        """As `Storage.read_into`; the bytes are there twice until it returns, so read large files in pieces."""
        buffer = buffer.cast("B")
        buffer[:] = self.read(name, start, start + len(buffer))

    def size(self, name: str) -> int:
        """As `Storage.size`."""
        return int(self._info(name)["size"])

    def version(self, name: str) -> str:
        """As `Storage.version`, as far as the file system tells what is new."""
        info = self._info(name)
        return " ".join(str(info.get(key)) for key in _VERSION)

    def _info(self, name: str) -> Mapping[str, Any]:
        path = self._path(name)
        info: Mapping[str, Any] = self._try(name, "looked at", lambda: self._fs.info(path))
        if info["type"] != "file":
            raise StorageMissing(f"{self.full(name)} is no file", self.full(name), errno.ENOENT)
        return info

    def list(self, folder: str = "") -> Sequence[Item]:
        """As `Storage.list`."""
        path = self._path(folder)
        try:
            found = self._try(folder, "listed", lambda: self._fs.ls(path, detail=True))
        except StorageMissing as error:
            if _is_of_bucket(error):  # an empty one would have a job begin anew
                raise
            return []
        items = []
        for info in found:
            name = info["name"].rstrip("/").rpartition("/")[2]
            if info["name"].strip("/") != path.strip("/") and name:  # a bucket lists a folder's own mark with it
                items.append(Item(name, int(info["size"]) if info["type"] == "file" else None, _modified(info)))
        return sorted(items, key=lambda item: item.name)

    def delete(self, name: str) -> None:
        """As `Storage.delete`."""
        self._delete(name, self._fs.rm_file, self._path(name))

    def delete_tree(self, folder: str) -> None:
        """As `Storage.delete_tree`: file by file, since fsspec's `rm` takes names for patterns, in lists, too."""
        path, with_folders = self._path(folder), not self._appears_whole
        try:
            found = self._try(folder, "deleted", lambda: self._fs.find(path, withdirs=with_folders, detail=True))
        except StorageMissing:
            return
        folders = [name for name, info in found.items() if with_folders and info.get("type") == "directory"]
        files = sorted(found.keys() - set(folders))
        with ThreadPoolExecutor(_DELETED_AT_ONCE if self._appears_whole else 1) as pool:
            list(pool.map(lambda name: self._delete(folder, self._fs.rm_file, name), files))
        for name in sorted(folders, reverse=True):  # what is in a folder before it
            self._delete(folder, self._fs.rmdir, name)

    def _delete(self, name: str, delete: Callable[[str], None], path: str) -> None:
        with contextlib.suppress(StorageMissing):
            self._try(name, "deleted", lambda: delete(path))

    def leftovers(self, name: str) -> Sequence[Item]:
        """As `Storage.leftovers`: none in a bucket, which may have very many names to list."""
        return [] if self._appears_whole else super().leftovers(name)

    def sync(self, folder: str = "") -> None:
        """As `Storage.sync`: there is nothing to flush, an answered request has happened."""

    def _short(self, name: str, wanted: int) -> CorruptFile:
        full = self.full(name)
        return CorruptFile(f"{full} is cut short: bytes up to {wanted} were expected, it has {self.size(name)}", full)

    def _try(self, name: str, done: str, operation: Callable[[], T]) -> T:
        """What `operation` returns, in as many attempts as it needs and may have; its error becomes ours."""
        deadline = Deadline(self._timeout_s, self._clock)
        delay = _FIRST_DELAY_S
        for attempt in range(1, self._attempts + 1):
            try:
                return operation()
            except Exception as error:  # noqa: BLE001 - see `_translate`: packages' errors have no other common base
                wait = delay * random.uniform(0.5, 1.0)
                left = deadline.left()
                if attempt == self._attempts or not _may_pass(error) or (left is not None and left <= wait):
                    self._translate(error, name, done, attempt)
            self._clock.sleep(wait)
            delay = min(2 * delay, _LONGEST_DELAY_S)
        raise AssertionError("the last attempt returns or raises")

    @contextlib.contextmanager
    def _told(self, name: str, done: str) -> Iterator[None]:
        """For what cannot be tried again as a whole; its parts are, inside the file system."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - as in `_try`
            self._translate(error, name, done, 1)

    def _translate(self, error: Exception, name: str, done: str, attempts: int) -> NoReturn:
        """Raise our error for that of a file system, which names the file and what to do; others as they are.

        It gets every Exception: those of botocore and aiohttp are no OSError, s3fs lets some of them through, and the
        packages, being optional, cannot be named in an except clause.
        """
        full = self.full(name)
        text = f"{full} cannot be {done}: {' '.join(str(error).split()) or type(error).__name__}"
        text += f" (tried {attempts} times)" if attempts > 1 else ""
        code = error.errno if isinstance(error, OSError) else None
        causes = _causes(error)
        if any(type(cause).__name__ in _CREDENTIALS for cause in causes):
            raise StorageDenied(f"{text}: no credentials were found; {_WHERE_CREDENTIALS}", full, code) from None
        if isinstance(error, FileExistsError):
            raise StorageExists(f"{full} is there already: another writer was first", full, code) from None
        if _is_of_bucket(error):
            raise StorageMissing(f"{text}: {self._base.partition('/')[0]}; is its name right?", full, code) from None
        if isinstance(error, FileNotFoundError):
            raise StorageMissing(f"{text}; is the bucket there, and the name right?", full, code) from None
        if isinstance(error, PermissionError):
            raise StorageDenied(f"{text}; {_WHERE_CREDENTIALS}", full, code) from None
        if any(isinstance(cause, TimeoutError) or "Timeout" in type(cause).__name__ for cause in causes):
            raise StorageTimeout(f"{text}; no answer within {spell(self._timeout_s)}", full, code) from None
        if isinstance(error, OSError) or any(_of_network(cause) for cause in causes):
            raise StorageError(text, full, code) from None
        raise error


class _Remote(Writing):
    """A file whose parts are uploaded as they come."""

    def __init__(self, storage: FsspecStorage, name: str, file: Any) -> None:
        self._storage, self._name, self._file = storage, name, file

    def write(self, data: Any) -> None:
        """As `Writing.write`."""
        fault_points.reached("saving")
        left = memoryview(data).cast("B")
        with self._storage._told(self._name, "written"):
            for start in range(0, len(left), PART_BYTES):
                self._file.write(left[start : start + PART_BYTES])


_WHERE_CREDENTIALS = (
    "S3 takes credentials from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ~/.aws, the machine's role, or "
    "options={'key': ..., 'secret': ...}, and its address from AWS_ENDPOINT_URL or options={'endpoint_url': ...}"
)


def _file_system(url: str, options: dict[str, Any], timeout_s: float, attempts: int) -> tuple[Any, str]:
    """fsspec's file system for `url`, and the path of the root in it."""
    try:
        core: Any = importlib.import_module("fsspec.core")
    except ImportError:
        raise UsageError(f"{url}: URLs need fsspec, and s3:// s3fs: pip install 'resilin[s3]'") from None
    protocol, bucket = url.partition("://")[0].rpartition("::")[2], url.partition("://")[2].partition("/")[0]
    if protocol in _APPEARS_WHOLE and not bucket:
        raise UsageError(f"{url} names no bucket; expected {protocol}://BUCKET or {protocol}://BUCKET/NAME")
    if protocol in _APPEARS_WHOLE and not _BUCKET.fullmatch(bucket):
        raise UsageError(f"{url} names the bucket {bucket!r}; expected letters, digits, '.', '-' and '_'")
    if protocol in _S3 and _REWRITTEN.search(url):
        raise UsageError(f"{url!r} would be taken for another name: s3fs cuts '?versionId=', tabs and line breaks out")
    if _CUT.search(url.partition("://")[2]):
        raise UsageError(f"{url}: '::' in a name begins another URL for fsspec; expected a name without it")
    if _FOLDER.search(url):
        raise UsageError(
            f"{url}: fsspec's 'dir::' takes names for patterns when files move: write the folder's own URL"
        )
    options.setdefault("use_listings_cache", False)
    if protocol in _S3:
        per_try = max(0.1, timeout_s / attempts)
        retries = {"total_max_attempts": attempts, "mode": "standard"}
        config = {"connect_timeout": per_try, "read_timeout": per_try, "retries": retries}
        options["config_kwargs"] = config | dict(options.get("config_kwargs", {}))
    try:
        fs, base = core.url_to_fs(url, **options)
    except (ImportError, ValueError, TypeError) as error:
        raise UsageError(f"{url} cannot be opened: {error}") from None
    except OSError as error:  # of a URL within another one, whose file is opened at once
        raise StorageError(f"{url} cannot be opened: {error!r}", url, error.errno) from None
    return fs, base


def _causes(error: BaseException) -> list[BaseException]:
    """An error and what led to it, at most a few steps back."""
    found = [error]
    while len(found) < 8:
        cause = found[-1].__cause__ or found[-1].__context__
        if cause is None or cause in found:
            break
        found.append(cause)
    return found


def _of_network(error: BaseException) -> bool:
    return type(error).__module__.startswith(_NETWORK)


def _is_of_bucket(error: BaseException) -> bool:
    """Whether it says that there is no such bucket, and not only no such name in it. Known of S3."""
    return any(_answer(cause).get("Error", {}).get("Code") == "NoSuchBucket" for cause in _causes(error))


def _answer(error: BaseException) -> Mapping[str, Any]:
    """What the server said, of errors of botocore."""
    answer = getattr(error, "response", None)
    return answer if isinstance(answer, dict) else {}


def _may_pass(error: Exception) -> bool:
    """Whether the same request may succeed soon."""
    if isinstance(error, FileNotFoundError | FileExistsError | PermissionError | IsADirectoryError):
        return False
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if isinstance(error, OSError) and error.errno in _TRANSIENT:
        return True
    for cause in _causes(error):
        status = _answer(cause).get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if status >= 500 or status == 429:
            return True
        name = type(cause).__name__
        if _of_network(cause) and ("Timeout" in name or "Connection" in name or "HTTPClient" in name):
            return True
    return False


def _modified(info: Mapping[str, Any]) -> float | None:
    for key in ("LastModified", "mtime", "modified", "created"):
        value = info.get(key)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None
