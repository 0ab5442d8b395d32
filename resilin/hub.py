"""The names of torch.hub: weights by their URL, kept in a folder of the user. Programs are not fetched.

The folder is `$TORCH_HOME/hub`, else `$XDG_CACHE_HOME/torch/hub`, else `~/.cache/torch/hub`, as PyTorch's, so that what
one of both has fetched is there for the other. A file is complete when it is there: it is written beside, its hash
compared, and renamed.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import logging
import os
import re
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlparse  # noqa: F401 - libraries import it from here

from resilin._base import env, log
from resilin.checkpoint import load_safetensors
from resilin.core import serialize
from resilin.core.device import device
from resilin.core.tensor import Tensor
from resilin.core.trees import transform
from resilin.errors import UsageError

__all__ = [
    "download_url_to_file",
    "get_dir",
    "help",
    "list",
    "load",
    "load_state_dict_from_url",
    "set_dir",
]

_LOG = log.logger("hub")
HASH_REGEX = re.compile(r"-([a-f0-9]*)\.")  # in a name: resnet18-f37072fd.pth
_TIMEOUT_S = 60.0  # for one read: a server that sends nothing for so long is gone
_BLOCK_BYTES = 1 << 20
_chosen: dict[str, str] = {}


class _Progress:
    """Counts on standard error what has come, as tqdm does, for those that have no tqdm."""

    def __init__(self, total: float | None = None, disable: bool = False, *args: Any, **kwargs: Any) -> None:
        self.total, self.disable, self.n = total, disable, 0

    def update(self, n: int = 1) -> None:
        """`n` more have come."""
        self.n += n
        if not self.disable:
            sys.stderr.write(f"\r{100 * self.n / self.total:.1f}%" if self.total else f"\r{self.n} bytes")
            sys.stderr.flush()

    def close(self) -> None:
        """Nothing more comes."""
        self.disable = True

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if not self.disable:
            sys.stderr.write("\n")


def __getattr__(name: str) -> Any:
    if name != "tqdm":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    try:
        return importlib.import_module("tqdm").tqdm
    except ImportError:
        return _Progress


def get_dir() -> str:
    """Return the folder of what was fetched."""
    if "dir" in _chosen:
        return _chosen["dir"]
    return os.path.join(_get_torch_home(), "hub")


def _get_torch_home() -> str:
    """Return the folder that PyTorch and its libraries keep files in: torchvision asks for it by this name."""
    cache = env.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    return os.path.expanduser(env.get("TORCH_HOME") or os.path.join(cache, "torch"))


def set_dir(d: str | os.PathLike[str]) -> None:
    """Keep what is fetched in this folder from now on."""
    _chosen["dir"] = os.path.expanduser(os.fspath(d))


def download_url_to_file(
    url: str, dst: str | os.PathLike[str], hash_prefix: str | None = None, progress: bool = True
) -> None:
    """Fetch a file to `dst`, which is replaced when all of it has come.

    hash_prefix: how the sha256 of the file begins. RuntimeError for another one; nothing is left then.

    Raises: urllib's URLError and HTTPError where there is no such server or file.
    """
    place = Path(os.path.expanduser(os.fspath(dst)))
    if progress:
        log.event(_LOG, logging.INFO, "a file is fetched", url=url, to=str(place))
    request = urllib.request.Request(url, headers={"User-Agent": "resilin.hub"})
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(urllib.request.urlopen(request, timeout=_TIMEOUT_S))
        descriptor, name = tempfile.mkstemp(prefix=f"{place.name}.", suffix=".partial", dir=place.parent)
        stack.callback(Path(name).unlink, missing_ok=True)
        hasher, received = hashlib.sha256(), 0
        with os.fdopen(descriptor, "wb") as file:
            while block := source.read(_BLOCK_BYTES):
                hasher.update(block)
                file.write(block)
                received += len(block)
        promised = source.headers.get("Content-Length")
        if promised is not None and received != int(promised):
            raise urllib.error.ContentTooShortError(f"{url}: got {received} of {promised} bytes; try again", ("", None))  # type: ignore[arg-type]
        digest = hasher.hexdigest()
        if hash_prefix is not None and digest[: len(hash_prefix)] != hash_prefix:
            raise RuntimeError(f'invalid hash value (expected "{hash_prefix}", got "{digest}") of {url}')
        os.replace(name, place)


def load_state_dict_from_url(
    url: str,
    model_dir: str | os.PathLike[str] | None = None,
    map_location: Any = None,
    progress: bool = True,
    check_hash: bool = False,
    file_name: str | None = None,
    weights_only: bool = False,
) -> Any:
    """Load what is at `url`, fetched into `model_dir` (`get_dir()`/checkpoints) unless it is there.

    Reads what `load` does, with `map_location` as there, and safetensors. Nothing that was fetched is ever unpickled:
    `weights_only` changes nothing. With `check_hash`, the name's last part, as in `resnet18-f37072fd.pth`, is how its
    sha256 begins.
    """
    folder = Path(os.path.expanduser(os.fspath(model_dir))) if model_dir else Path(get_dir()) / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    name = file_name or os.path.basename(urllib.parse.urlparse(url).path)
    if not name or name != os.path.basename(name):
        raise UsageError(
            f"load_state_dict_from_url: expected a URL that ends in a file's name, got {url!r}; give file_name"
        )
    path = folder / name
    if not path.exists():
        found = HASH_REGEX.search(name) if check_hash else None
        download_url_to_file(url, path, found[1] if found else None, progress)
    if path.suffix == ".safetensors":
        return _moved(load_safetensors(str(path)), map_location)
    return serialize.load(path, map_location)


def _moved(value: Any, where: Any) -> Any:
    if not isinstance(where, str | device):
        return value
    place = device(where)
    return transform(lambda leaf: leaf.to(place) if isinstance(leaf, Tensor) else leaf, value)


def load(repo_or_dir: str, model: str, *args: Any, source: str = "github", **kwargs: Any) -> Any:
    """Call the function `model` of the `hubconf.py` in a folder (`source="local"`).

    NotImplementedError for a repository: clone it, and give its folder.
    """
    for option in ("trust_repo", "force_reload", "verbose", "skip_validation"):
        kwargs.pop(option, None)
    return _entry(_hubconf(repo_or_dir, source), model)(*args, **kwargs)


def help(repo_or_dir: str, model: str, source: str = "github", **options: Any) -> str | None:
    """Return the docstring of the function `model` of a folder's `hubconf.py`."""
    found: str | None = _entry(_hubconf(repo_or_dir, source), model).__doc__
    return found


def list(repo_or_dir: str, source: str = "github", **options: Any) -> Any:
    """Return the names of the functions of a folder's `hubconf.py`."""
    found = vars(_hubconf(repo_or_dir, source))
    return [name for name, value in found.items() if callable(value) and not name.startswith("_")]


def _hubconf(folder: str, source: str) -> ModuleType:
    if source != "local":
        raise NotImplementedError(
            f"hub: {folder}: programs are not fetched from {source}; clone the repository and give its folder with "
            'source="local"'
        )
    path = os.path.join(folder, "hubconf.py")
    spec = importlib.util.spec_from_file_location("hubconf", path)
    if spec is None or spec.loader is None or not os.path.exists(path):
        raise FileNotFoundError(f"hub: expected a file hubconf.py in {folder}, found none")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    return module


def _entry(module: ModuleType, name: str) -> Any:
    found = getattr(module, name, None)
    if not callable(found):
        raise RuntimeError(f"Cannot find callable {name} in hubconf of {module.__file__}")
    return found
