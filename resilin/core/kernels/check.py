"""Compiles every CUDA kernel without a GPU: `python -m resilin.core.kernels.check [sm_80 sm_90 ...]`.

Prints a line for each instance of a kernel and architecture: registers of a thread, bytes that it writes to memory for
want of registers, shared memory of a block, bytes of code.
Exits with 1 and the compiler's own words when a kernel does not compile, or when one needs more registers than it may;
with 2 when there is no compiler.

An architecture such as sm_90a is sm_90 with instructions that no later one has. Sources that name none of them have
the same code for both, byte for byte, so they are compiled once.

The compiler is NVRTC of the packages nvidia-cuda-nvrtc-cu12 and nvidia-cuda-runtime-cu12 (headers), both from PyPI;
neither needs a driver.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import re
import struct
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from resilin._base import host
from resilin.core.kernels import optimizer_rules
from resilin.core.kernels.cuda import elementwise, multi_tensor, prebuilt, sources

ARCHITECTURES = ("sm_80", "sm_90", "sm_90a")  # A100, and H100 without and with what only it has
OF_ONE_ARCHITECTURE = re.compile(r"__CUDA_ARCH_FEAT_|__CUDA_ARCH_SPECIFIC__|\b(wgmma|setmaxnreg)\b")
REGISTERS = 128  # of a thread: two blocks of 256 threads fit a multiprocessor's registers
TOGETHER = 64  # generated kernels in one source: its headers take ten times as long as such a kernel
MISSING = "pip install nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12"


class CompilerMissing(Exception):
    """NVRTC or CUDA's headers are not installed."""


class CompileError(Exception):
    """A kernel does not compile; the text is the compiler's log."""


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What became of one instance of a kernel."""

    kernel: str
    architecture: str
    registers: int
    spilled_bytes: int
    shared_bytes: int
    code_bytes: int

    def is_within_bounds(self) -> bool:
        """Whether two blocks fit a multiprocessor, with every number of a thread in a register."""
        return self.registers <= REGISTERS and self.spilled_bytes == 0

    def __str__(self) -> str:
        return (
            f"{self.architecture:6}  {self.registers:3d} registers  {self.spilled_bytes:4d} B spilled  "
            f"{self.shared_bytes:5d} B shared  {self.code_bytes:6d} B code  {self.kernel}"
        )


def _package(name: str) -> Path:
    try:
        spec = importlib.util.find_spec(f"nvidia.{name}")
    except ModuleNotFoundError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise CompilerMissing(f"the package nvidia.{name} is not installed: {MISSING}")
    return Path(spec.submodule_search_locations[0])


class Nvrtc:
    """NVIDIA's run-time compiler, as a library of C functions."""

    def __init__(self) -> None:
        libraries = sorted(_package("cuda_nvrtc").glob("lib/libnvrtc.so.*"))
        self.include = _package("cuda_runtime") / "include"
        if not libraries:
            raise CompilerMissing(f"libnvrtc.so is missing from nvidia.cuda_nvrtc: {MISSING}")
        self._library = ctypes.CDLL(str(libraries[0]))
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def version(self) -> str:
        """NVRTC's version, such as 12.9."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def compile(
        self, name: str, code: str, instances: tuple[str, ...], architecture: str, given: tuple[str, ...]
    ) -> tuple[bytes, list[str], str]:
        """(CUBIN, lowered name of each instance, the assembler's words). CompileError: its log."""
        program = ctypes.c_void_p()
        source, label = code.encode(), f"{name}.cu".encode()
        self._must(self._library.nvrtcCreateProgram(ctypes.byref(program), source, label, 0, None, None))
        try:
            for instance in instances:
                self._must(self._library.nvrtcAddNameExpression(program, instance.encode()))
            options = [*given, f"--gpu-architecture={architecture}", f"-I{self.include}", "--ptxas-options=-v"]
            encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            failed = self._library.nvrtcCompileProgram(program, len(options), encoded)
            log = self._text(program, "ProgramLog").decode().rstrip("\0")
            if failed:
                raise CompileError(f"{name}.cu for {architecture}:\n{log}")
            return self._text(program, "CUBIN"), [self._lowered(program, instance) for instance in instances], log
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _lowered(self, program: ctypes.c_void_p, instance: str) -> str:
        found = ctypes.c_char_p()
        self._must(self._library.nvrtcGetLoweredName(program, instance.encode(), ctypes.byref(found)))
        return (found.value or b"").decode()

    def _text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._must(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self._must(getattr(self._library, f"nvrtcGet{what}")(program, buffer))
        return buffer.raw

    def _must(self, status: int) -> None:
        if status:
            raise CompileError(f"NVRTC: {self._library.nvrtcGetErrorString(status).decode()}")


_USED = re.compile(
    r"Function properties for (\S+)\s+ptxas[ .]+\d+ bytes stack frame, "
    r"(\d+) bytes spill stores, (\d+) bytes spill loads"
    r"\s+ptxas info\s*: Used (\d+) registers"
)
"""What the assembler says of a kernel when it is asked to be verbose."""


class Cubin:
    """What NVRTC makes: an ELF file of 64 bits with a section of code for each kernel."""

    def __init__(self, data: bytes) -> None:
        if data[:4] != b"\x7fELF":
            raise CompileError("NVRTC gave something that is no ELF file")
        start = struct.unpack_from("<Q", data, 0x28)[0]
        step, count, names = struct.unpack_from("<3H", data, 0x3A)
        heads = [struct.unpack_from("<IIQQQQ", data, start + i * step) for i in range(count)]
        self._data, self._names_at = data, heads[names][4]
        self._places = {self._name(self._names_at, head[0]): (head[4], head[5]) for head in heads}
        self.sizes = {name: size for name, (_, size) in self._places.items()}  # .nv.shared holds no bytes

    def contents(self, *prefixes: str) -> dict[str, bytes]:
        """The sections whose names begin so."""
        chosen = {name: place for name, place in self._places.items() if name.startswith(prefixes)}
        return {name: self._data[begin : begin + size] for name, (begin, size) in chosen.items()}

    def _name(self, table: int, offset: int) -> str:
        begin = table + offset
        return self._data[begin : self._data.index(b"\0", begin)].decode()


def generated() -> dict[str, tuple[str, ...]]:
    """Name of what kernels are made of by tracing -> all of its kernels, which `sources` then has."""
    rules = {
        f"multi_tensor: {name}": tuple(dict.fromkeys(made.name for made in multi_tensor.all_programs(name, rule)))
        for name, rule in sorted(optimizer_rules.RULES.items())
    }
    return {**rules, **{f"elementwise: {name}": kernels for name, kernels in elementwise.all_kernels()}}


def check(nvrtc: Nvrtc, name: str, architecture: str, instances: tuple[str, ...] | None = None) -> list[Compiled]:
    """Compile all instances of the kernels of `name`.cu for one architecture; or these, generated ones, in one go."""
    binary, symbols, log = _compiled(nvrtc, name, architecture, instances)
    cubin = Cubin(binary)
    used = {symbol: (int(registers), int(out) + int(back)) for symbol, out, back, registers in _USED.findall(log)}
    if missing := sorted(set(symbols.values()) - set(used)):
        raise CompileError(f"{name}.cu for {architecture}: the assembler says nothing of {', '.join(missing)}:\n{log}")
    return [
        Compiled(
            kernel=instance,
            architecture=architecture,
            registers=used[symbol][0],
            spilled_bytes=used[symbol][1],
            shared_bytes=cubin.sizes.get(f".nv.shared.{symbol}", 0),
            code_bytes=cubin.sizes[f".text.{symbol}"],
        )
        for instance, symbol in symbols.items()
    ]


def _compiled(
    nvrtc: Nvrtc, name: str, architecture: str, instances: tuple[str, ...] | None
) -> tuple[bytes, dict[str, str], str]:
    """(CUBIN, symbol of each instance, the assembler's words)."""
    if instances is None:
        instances, code, options = sources.KERNELS[name], sources.text(name), sources.options(name)
    else:
        code, options = sources.text_of_all(instances), sources.options(instances[0])
    binary, lowered, log = nvrtc.compile(name, code, instances, architecture, options)
    return binary, dict(zip(instances, lowered, strict=True)), log


def everything() -> dict[str, tuple[str, ...] | None]:
    """What there is to compile, as `check` takes it."""
    return {**dict.fromkeys(sources.KERNELS), **generated()}


def batches() -> list[tuple[str, tuple[str, ...] | None]]:
    """`everything()`, with small sources that were generated in one: their headers are read once."""
    found: list[tuple[str, tuple[str, ...] | None]] = []
    for name, instances in everything().items():
        last = found[-1][1] if found else None
        if instances is None or last is None or len(last) + len(instances) > TOGETHER:
            found.append((name, instances))
        else:
            found[-1] = (f"{found[-1][0]}, {name}", (*last, *instances))
    return found


def is_of_one_architecture(name: str, instances: tuple[str, ...] | None) -> bool:
    """Whether a source names what only an architecture such as sm_90a has."""
    return (
        OF_ONE_ARCHITECTURE.search(sources.text(name) if instances is None else sources.text_of_all(instances))
        is not None
    )


def prepare(folder: Path, architecture: str, names: Iterable[str] | None = None) -> int:
    """Compile all kernels, or those of these names, into `folder`, for `prebuilt.use`; gives their number."""
    nvrtc, count = Nvrtc(), 0
    whole = everything()
    for number, name in enumerate(whole if names is None else names):
        instances = whole[name]
        binary, symbols, _ = _compiled(nvrtc, name, architecture, instances)
        of = {name: symbols} if instances is None else {one: {one: symbol} for one, symbol in symbols.items()}
        prebuilt.save(folder, architecture, f"{architecture}-{number}.cubin", binary, of)
        count += len(symbols)
    return count


def main(arguments: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        "python -m resilin.core.kernels.check", description="Compile every CUDA kernel, without a GPU."
    )
    parser.add_argument("architectures", nargs="*", help=f"what to compile for (default: {' '.join(ARCHITECTURES)})")
    architectures: list[str] = parser.parse_args(arguments).architectures
    try:
        nvrtc = Nvrtc()
    except CompilerMissing as error:
        print(f"no CUDA compiler: {error}", file=sys.stderr)
        return 2
    print(f"NVRTC {nvrtc.version()}")
    failed = 0
    with ThreadPoolExecutor(host.cpu_count()) as threads:  # the compiler lets go of Python's lock
        for done in threads.map(lambda work: _report(nvrtc, *work), _to_do(architectures or list(ARCHITECTURES))):
            print(*(done[0]), sep="\n")
            if done[1]:
                failed = 1
                print(*done[1], sep="\n", file=sys.stderr)
    return failed


def _to_do(architectures: list[str]) -> Iterator[tuple[str, tuple[str, ...] | None, str]]:
    for name, instances in batches():
        own = is_of_one_architecture(name, instances)
        for architecture in architectures:
            if own or architecture.removesuffix("a") == architecture or architecture[:-1] not in architectures:
                yield name, instances, architecture


def _report(
    nvrtc: Nvrtc, name: str, instances: tuple[str, ...] | None, architecture: str
) -> tuple[list[Compiled], list[str]]:
    """(what was compiled, what is wrong with it)."""
    try:
        found = check(nvrtc, name, architecture, instances)
    except CompileError as error:
        return [], [str(error)]
    return found, [f"{one}: more than {REGISTERS} registers, or spilled" for one in found if not one.is_within_bounds()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
