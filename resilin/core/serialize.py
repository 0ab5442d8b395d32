"""`save` and `load`: nested containers of tensors and plain values in one file. No pickle, but of objects of classes.

Format (little-endian), in the manner of safetensors:

    8 bytes   magic b"RESILIN2"
    8 bytes   length H of the header
    H bytes   header, JSON: {"tree": ..., "blocks": [{"start", "stop"}, ...], "tensors": [{"dtype", "shape", "strides",
              "block", "offset", "device", "grad", "kind"}, ...]}; strides and offsets (into the block) in bytes
    rest      the blocks, each at a multiple of 64 from the start of this part, in order

A block is the memory of one tensor, or of several that overlap: what was shared is stored once and shared again. A
file is read only if its blocks cover this part, and its tensors their blocks, exactly; every way to be wrong is an
UsageError that says which. Files of the earlier b"RESILIN1", in which each tensor is a block of its own in C order and
has that block's "start" and "stop", are read, too.
The tree is that of `typed_json`; an object that it has no form for is pickled (`whole_objects`). The header ends with
spaces, so that the blocks lie at multiples of 64 in the file.
"""

from __future__ import annotations

import ctypes
import importlib
import io
import itertools
import json
import operator
import os
from argparse import Namespace
from typing import Any, BinaryIO

import numpy as np

from resilin._base import fault_points, gradual, json_text
from resilin.core import dtype as dtypes
from resilin.core import safe_globals, typed_json, whole_objects
from resilin.core.device import device
from resilin.core.state.copying import are_booleans, array_over, check_repeats
from resilin.core.tensor import Parameter, Tensor, wrap
from resilin.core.whole_file import write_whole
from resilin.errors import UsageError, UsageTypeError, UsageUnpicklingError

_MAGIC = b"RESILIN2"
_MAGIC_OF_OWN_BLOCKS = b"RESILIN1"
_ALIGN = 64  # cache line: a mapped file's tensors can be used in place
_MAX_HEADER_BYTES = 1 << 30
_TOO_DEEP = "nested too deeply, or contains itself"


class _Writer:
    """Turns an object into a JSON tree, a list of arrays and an entry for each."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.arrays: list[Any] = []
        self._seen: dict[int, tuple[int, Any]] = {}  # id to entry, and the object, which keeps the id its own

    def tree(self, value: Any, path: str) -> Any:
        """The JSON form of `value`."""
        return typed_json.encode(value, path, self._leaf)

    def _leaf(self, value: Any, path: str) -> Any:
        if isinstance(value, Tensor):
            return typed_json.tagged("tensor", self._tensor(value))
        if isinstance(value, np.ndarray):
            typed_json.check_kind(value, path)
            return typed_json.tagged("numpy", self._numpy(value))
        if isinstance(value, Namespace):
            return typed_json.tagged("namespace", typed_json.encode(vars(value), path, self._leaf))
        if whole_objects.is_whole(value):
            data, name = whole_objects.pickled(value, path, self._tensor)
            return typed_json.tagged("pickle", [name, self._numpy(np.frombuffer(data, np.uint8))])
        return None

    def _tensor(self, tensor: Tensor) -> int:
        known = self._seen.get(id(tensor))
        if known is not None:
            return known[0]
        array = tensor._dev.backend.to_host(tensor._array) if tensor._dev.xp.elements else tensor._array.one_for_all()
        kind = "parameter" if isinstance(tensor, Parameter) else "tensor"
        self.entries.append(
            {
                "dtype": tensor.dtype.name,
                "shape": list(array.shape),
                "strides": list(array.strides),
                "device": str(tensor._dev),
                "grad": tensor._rg,
                "kind": kind,
            }
        )
        self.arrays.append(array)
        self._seen[id(tensor)] = len(self.entries) - 1, tensor
        return len(self.entries) - 1

    def _numpy(self, value: Any) -> int:
        known = self._seen.get(id(value))
        if known is not None:
            return known[0]
        array = np.asarray(value)
        number = self._tensor(wrap(array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))))
        self.entries[number]["kind"] = "array"
        self._seen[id(value)] = number, value
        return number

    def blocks(self) -> list[Any]:
        """The bytes to store: the entries are told their block and their place in it."""
        parts = [np.lib.array_utils.byte_bounds(array) if array.size else (0, 0) for array in self.arrays]
        blocks: list[Any] = []
        end = 0
        for number in sorted(range(len(parts)), key=parts.__getitem__):
            low, high = parts[number]
            if low >= end or not blocks:
                blocks.append([low, high])
            blocks[-1][1] = end = max(blocks[-1][1], high)
            first = self.arrays[number].__array_interface__["data"][0] if high else 0
            self.entries[number] |= {"block": len(blocks) - 1, "offset": first - blocks[-1][0]}
        return [_bytes_at(low, high) for low, high in blocks]


def _bytes_at(low: int, high: int) -> Any:
    """The memory from address `low` up to `high`, which the arrays that were asked for it keep alive."""
    return (ctypes.c_char * (high - low)).from_address(low) if high > low else b""


def save(
    obj: Any,
    f: str | os.PathLike[str] | BinaryIO,
    pickle_module: Any = None,
    pickle_protocol: int | None = None,
    _use_new_zipfile_serialization: bool = True,
    _disable_byteorder_record: bool = False,
) -> None:
    """Write `obj` (tensors, numbers, text, bytes, in lists, tuples, sets and dicts) to a path or an open binary file.

    Also modules and other objects of classes: they are pickled, and read where `serialization.add_safe_globals` allowed
    their classes, or with `load(..., weights_only=False)`.

    A path is written under another name first and renamed, so that a crash, or another writer, leaves the old file or
    a new one. Tensors and arrays that share memory are stored once, with their strides; of a view, the memory from its
    first to its last element. A subclass of list, tuple, dict or str comes back as what it is a subclass of, but for
    OrderedDict, Counter and Size. UsageError names the place of an object that cannot be saved; OSError the path, as
    of a full disk.

    The arguments after `f` are there for programs that give them, and change nothing.
    """
    writer = _Writer()
    try:
        tree = writer.tree(obj, "the object")
        blocks = writer.blocks()
        places: list[dict[str, int]] = []
        for block in blocks:
            start = -(-places[-1]["stop"] // _ALIGN) * _ALIGN if places else 0
            places.append({"start": start, "stop": start + len(block)})
        header = json.dumps({"tree": tree, "blocks": places, "tensors": writer.entries}, separators=(",", ":")).encode()
    except RecursionError:
        raise UsageError(f"save: the object is {_TOO_DEEP}") from None
    header += b" " * (-(16 + len(header)) % _ALIGN)
    if isinstance(f, str | os.PathLike):
        write_whole(f, lambda file: _write(file, header, places, blocks))
    else:
        _write(f, header, places, blocks)


def _write(file: Any, header: bytes, places: list[dict[str, int]], blocks: list[Any]) -> None:
    _put(file, _MAGIC + len(header).to_bytes(8, "little") + header)
    position = 0
    for place, block in zip(places, blocks, strict=True):
        _put(file, bytes(place["start"] - position))
        _put(file, block)
        position = place["stop"]


def _put(file: Any, data: Any) -> None:
    """Write all of `data`: a file without a buffer may take a part at a time."""
    fault_points.reached("saving")
    left = memoryview(data).cast("B")
    while left.nbytes:
        count = file.write(left)
        left = left[left.nbytes if count is None else count :]


def load(
    f: str | os.PathLike[str] | BinaryIO,
    map_location: Any = None,
    pickle_module: Any = None,
    *,
    weights_only: bool = True,
    mmap: bool | None = None,
    **pickle_load_args: Any,
) -> Any:
    """Read what `save` wrote, or PyTorch, as `checkpoint.import_torch` reads it.

    Loading runs no code of the file, whatever it holds, but of the classes and functions that the program gave to
    `serialization.add_safe_globals`: those are called with what the file says. `weights_only=False` allows all that was
    saved whole, which is unpickled: only for files whose writer you trust. In PyTorch's files, what is below `torch` is
    looked up here, where modules have the same names and attributes.

    Tensors that shared memory share it again, on the CPU; one that goes to another device gets memory of its own.
    `map_location`: the device (or a function of the saved device's name, or a dict of names) that tensors go to.
    `mmap=True`, of a path: the tensors lie in the file's pages, which are read when they are looked at; what is written
    to them stays in this process. The file must not be changed meanwhile, though it may be replaced, as `save` does.
    An open file is left behind what was read: several that were saved into it one after another are loaded so.

    UsageError when the file is not one of `save`'s, is damaged, or holds an object that is not allowed. Of PyTorch's
    files, UnsafePickle names what is neither a tensor, a plain value nor allowed, UsageUnpicklingError what resilin has
    nothing of. CheckpointError names an allowed class that raised.

    `pickle_module`, `encoding`, `errors` and `fix_imports` change nothing.
    """
    unknown = pickle_load_args.keys() - {"encoding", "errors", "fix_imports"}
    if unknown:
        raise UsageTypeError(f"load() got an unexpected keyword argument {min(unknown)!r}")
    if isinstance(f, str | os.PathLike):
        with open(f, "rb") as file:
            magic = file.read(8)
            if _is_pytorchs(magic):
                return _of_pytorch(f, os.fspath(f), map_location, weights_only)
            return _read(magic, file, map_location, os.fspath(f), _mapped if mmap else _loaded, weights_only)
    if mmap:
        raise UsageError("load: mmap=True needs the path of the file, got an open one")
    name, magic = str(getattr(f, "name", "the file")), f.read(8)
    if _is_pytorchs(magic):
        return _of_pytorch(magic + f.read(), name, map_location, weights_only)
    return _read(magic, f, map_location, name, _loaded_in_line, weights_only)


def _is_pytorchs(magic: bytes) -> bool:
    return magic[:2] == b"PK" or magic[:1] == b"\x80"


def _of_pytorch(file: Any, name: str, map_location: Any, weights_only: bool) -> Any:
    """The object in a file of PyTorch's, a path or bytes, which a package above this one reads."""
    torch_files = importlib.import_module("resilin.checkpoint.torch_files")
    return torch_files.read_torch(
        file,
        name,
        lambda tensor, saved_on, held: _placed(tensor, saved_on, map_location, name, held),
        safe_globals.by_name() if weights_only else torch_files.EVERYTHING,
    )


def _read(magic: bytes, file: Any, map_location: Any, name: str, read: Any, weights_only: bool) -> Any:
    if magic not in (_MAGIC, _MAGIC_OF_OWN_BLOCKS):
        raise UsageUnpicklingError(
            f"load: {name} was not written by resilin.save, nor by PyTorch: it starts with {magic!r}"
        )
    length = int.from_bytes(file.read(8), "little")
    if length > _MAX_HEADER_BYTES:
        raise UsageError(f"load: {name} announces a header of {length} bytes, the limit is {_MAX_HEADER_BYTES}")
    try:
        header = json_text.parse(gradual.read(file, length), finite=True, deepest=None)
        entries, tree = header["tensors"], header["tree"]
        blocks = header["blocks"] if magic == _MAGIC else _own_blocks(entries, name)
    except UsageError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"load: the header of {name} is damaged: {error!r:.200}") from None
    if not isinstance(entries, list) or not isinstance(blocks, list):
        raise UsageError(f"load: the header of {name} is damaged: tensors and blocks should be lists")
    tensors = _tensors(entries, read(file, 16 + length, blocks, name), map_location, name)
    leaves: dict[str, Any] = {
        "tensor": tensors.__getitem__,
        "numpy": lambda number: tensors[number].cpu().numpy(),
        "namespace": lambda fields: Namespace(**typed_json.decode(fields, leaves)),
        "pickle": lambda form: whole_objects.unpickled(form, tensors, name, weights_only),
    }
    try:
        return typed_json.decode(tree, leaves)
    except whole_objects.NotLoaded as error:
        raise error.cause from None
    except (
        KeyError,
        TypeError,
        IndexError,
        ValueError,
        RuntimeError,
    ) as error:  # the last of a device that is not here
        raise UsageError(f"load: the tree of {name} is damaged: {error!r:.200}") from None
    finally:
        leaves.clear()  # they refer to themselves, and to all tensors, which the garbage collector would have to find


def _own_blocks(entries: Any, name: str) -> list[Any]:
    """The blocks of a file of the first format; its entries are told their place and strides."""
    for number, entry in enumerate(entries):
        try:
            size = dtypes.by_name(entry["dtype"]).itemsize
            steps = itertools.accumulate([size, *reversed(entry["shape"][1:])], operator.mul)
            entry |= {"block": number, "offset": 0, "strides": list(steps)[: len(entry["shape"])][::-1]}
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"load: the entry of tensor {number} in {name} is damaged: {error!r:.200}") from None
    return [{"start": entry.get("start"), "stop": entry.get("stop")} for entry in entries]


def _spans(places: Any, total: int, name: str, more: bool = False) -> list[tuple[int, int]]:
    """Where each block begins and ends in the `total` bytes behind the header; `more`: others may follow."""
    made = []
    end = 0
    for number, place in enumerate(places):
        try:
            start, stop = int(place["start"]), int(place["stop"])
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"load: the entry of block {number} in {name} is damaged: {error!r:.200}") from None
        if start != -(-end // _ALIGN) * _ALIGN or stop < start:
            raise UsageError(f"load: block {number} of {name} has impossible offsets {start} to {stop}")
        if stop > total:
            raise UsageError(f"load: {name} is cut short: block {number} ends at {stop} of {total} bytes")
        end = stop
        made.append((start, stop))
    if end != total and not more:
        raise UsageError(f"load: {name} has {total - end} bytes that belong to no tensor")
    return made


def _mapped(file: Any, begin: int, places: Any, name: str) -> list[Any]:
    """Each block where it lies in the file; of files whose blocks do not lie well, a copy."""
    body = np.memmap(file, np.uint8, "c")[begin:].view(np.ndarray)
    blocks = [body[start:stop] for start, stop in _spans(places, len(body), name)]
    return [block if block.ctypes.data % _ALIGN == 0 else block.copy() for block in blocks]


def _loaded_in_line(file: Any, begin: int, places: Any, name: str) -> list[Any]:
    """As `_loaded`, of a file behind which another may begin."""
    return _loaded(file, begin, places, name, alone=False)


def _loaded(file: Any, begin: int, places: Any, name: str, alone: bool = True) -> list[Any]:
    """Each block in memory of its own, read straight into it where the file can be sought."""
    if not (hasattr(file, "readinto") and hasattr(file, "seekable") and file.seekable()):
        file = io.BytesIO(file.read())
    here = file.tell()
    total = file.seek(0, os.SEEK_END) - here
    spans = _spans(places, total, name, more=not alone)
    end = here + (spans[-1][1] if spans else 0)
    file.seek(end)
    if not alone and not _may_follow(file.read(len(_MAGIC))):
        _spans(places, total, name)  # says what is wrong
    file.seek(end)
    blocks = []
    for start, stop in spans:
        file.seek(here + start)
        block = np.empty(stop - start, np.uint8)
        left = block.data
        while left.nbytes:
            count = file.readinto(left)
            if not count:
                raise UsageError(f"load: {name} is cut short: it became smaller while it was read")
            left = left[count:]
        blocks.append(block)
    return blocks


def _may_follow(magic: bytes) -> bool:
    return not magic or magic in (_MAGIC, _MAGIC_OF_OWN_BLOCKS) or _is_pytorchs(magic)


def _tensors(entries: Any, blocks: list[Any], map_location: Any, name: str) -> list[Tensor]:
    made = []
    covered = [[block.size, 0] for block in blocks]  # the lowest and the highest byte that a tensor of the block has
    for number, entry in enumerate(entries):
        try:
            dtype, shape = dtypes.by_name(entry["dtype"]), [int(n) for n in entry["shape"]]
            strides, offset = [int(n) for n in entry["strides"]], int(entry["offset"])
            where, kind, grad = str(entry["device"]), entry["kind"], bool(entry["grad"])
            block, reach = blocks[entry["block"]], covered[entry["block"]]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise UsageError(f"load: the entry of tensor {number} in {name} is damaged: {error!r:.200}") from None
        low, high = _extent(dtype.itemsize, shape, strides, offset)
        if len(strides) != len(shape) or min(shape, default=0) < 0 or low < 0 or high > block.size:
            raise UsageError(f"load: tensor {number} of {name} has impossible offsets {low} to {high} in its block")
        reach[:] = min(reach[0], low), max(reach[1], high)
        try:
            array = array_over(block, dtype.np, shape, strides, offset) if high > low else np.zeros(shape, dtype.np)
        except ValueError as error:  # more dimensions or longer ones than numpy has
            raise UsageError(f"load: the shape of tensor {number} in {name} is damaged: {error!s:.200}") from None
        if array.dtype == np.bool_ and not are_booleans(array):
            raise UsageError(f"load: tensor {number} of {name} is boolean and has bytes that are neither 0 nor 1")
        tensor = wrap(array)
        if kind != "array":
            tensor = _placed(tensor, where, map_location, name, block.size)
        made.append(Parameter(tensor, grad) if kind == "parameter" else tensor.requires_grad_(grad))
    for number, (reach, block) in enumerate(zip(covered, blocks, strict=True)):
        if block.size and reach != [0, block.size]:
            raise UsageError(f"load: block {number} of {name} has impossible offsets: its tensors do not cover it")
    return made


def _extent(itemsize: int, shape: list[int], strides: list[int], offset: int) -> tuple[int, int]:
    """The first byte and the end of a tensor's elements; equal for none."""
    if 0 in shape:
        return offset, offset
    ends = [(n - 1) * step for n, step in zip(shape, strides, strict=False)]
    return offset + sum(e for e in ends if e < 0), offset + sum(e for e in ends if e > 0) + itemsize


def _placed(tensor: Tensor, saved_on: str, map_location: Any, name: str, held: int) -> Tensor:
    if saved_on == "meta":  # one element stands for all, which are none: it stays without, as in PyTorch
        return tensor.to(saved_on)
    target: Any = map_location
    if callable(map_location) and not isinstance(map_location, device):
        result = map_location(tensor, saved_on)
        return tensor if result is None else result
    if isinstance(map_location, dict):
        target = map_location.get(saved_on)
    if str(saved_on if target is None else target) == "cpu":
        return tensor
    try:  # a copy, of every element
        check_repeats(tensor.shape, tensor.dtype.itemsize, held)
    except ValueError as error:
        raise UsageError(f"load: {name}: {error}, or give map_location='cpu'") from None
    moved: Tensor
    if target is not None:
        moved = tensor.to(target)
        return moved
    try:
        moved = tensor.to(saved_on)
    except RuntimeError as error:
        raise UsageError(
            f"load: {name} has a tensor that was saved on {saved_on!r}; give map_location='cpu', or another device "
            f"that is here: {error}"
        ) from None
    return moved


def dumps(obj: Any) -> bytes:
    """`save` into bytes."""
    buffer = io.BytesIO()
    save(obj, buffer)
    return buffer.getvalue()


def loads(data: bytes, map_location: Any = None) -> Any:
    """`load` from bytes."""
    return load(io.BytesIO(data), map_location)


__all__ = ["dumps", "load", "loads", "save"]
