"""Which storage a path or URL stands for."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from resilin.checkpoint.local import LocalStorage, check_bytes
from resilin.checkpoint.remote import FsspecStorage
from resilin.checkpoint.storage import Reading, Storage
from resilin.errors import UsageError, UsageTypeError

_KIND = r"[A-Za-z][A-Za-z0-9+.-]+"  # of one letter it would be a drive
_KINDS = re.compile(rf"{_KIND}(::{_KIND})*")  # fsspec knows storages within storages
_LOST_SLASH = re.compile(rf"({_KIND}):(?:/(.*))?")


def open_storage(root: str | os.PathLike[str] | Storage, options: Mapping[str, Any] | None = None) -> Storage:
    """The storage under `root`: a path, `file://PATH`, or any URL that fsspec knows (`s3://BUCKET/KEY`, `memory://X`).

    options: arguments of fsspec's file system, as {"endpoint_url": ..., "key": ..., "secret": ...} of S3's; for a path
             there are none. A Storage is given back as it is.
    UsageError for a URL of a kind that is not known, or whose package is not installed.
    """
    if isinstance(root, Storage):
        return root
    text = _text(root)
    if options is not None and not isinstance(options, Mapping):
        raise UsageTypeError(f"open_storage: options are a dict by names, got {options!r:.100}")
    if "://" in text and not text.startswith("file://"):
        return FsspecStorage(text, options)
    if options:
        raise UsageError(f"open_storage: a local folder takes no options, got {', '.join(options)} for {text!r}")
    return LocalStorage(unquote(text.removeprefix("file://")) if text.startswith("file://") else text)


def open_parent(path: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> tuple[Storage, str]:
    """The storage that the file at `path`, or at a URL, lies directly in, and its name there."""
    text = _text(path)
    if "://" not in text:
        text = os.path.abspath(os.path.expanduser(text))
    folder, _, name = text.rpartition("/")
    if not name or folder.endswith(":/"):
        raise UsageError(f"{text!r} is no file: expected a folder, or a URL with a bucket, and a name")
    return open_storage(folder or "/", options), name


def open_file(path: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> Reading:
    """The file at `path`, or at a URL, to read. StorageMissing when there is none."""
    return Reading(*open_parent(path, options))


def _text(path: Any) -> str:
    """`path` as text; of a URL, with its kind in small letters. UsageError for what was to be a URL and is none."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str):
        raise UsageTypeError(f"expected a path as text or as os.PathLike, a URL, or a Storage, got {path!r:.100}")
    check_bytes(text)
    if text and not text.strip():
        raise UsageError(f"expected a path that is not blank, or a URL, got {text!r}")
    kind, mark, rest = text.partition("://")
    if mark:
        if _KINDS.fullmatch(kind) is None:
            raise UsageError(f"{text!r} names no kind of storage before '://'; write 's3://BUCKET/NAME', or a path")
        return f"{kind.lower()}://{rest}"
    if (lost := _LOST_SLASH.fullmatch(text)) is not None:
        meant = f"{lost[1].lower()}://{'/' if lost[1].lower() == 'file' else ''}{lost[2] or 'BUCKET/NAME'}"
        raise UsageError(
            f"{text!r} is no path and no URL: write {meant!r} as text, of which pathlib would make one slash; or, for "
            f"the folder that is called so, {f'./{text}'!r}"
        )
    return text
