"""What bytes of strangers may meet: how native code is built, read from its files, and what versions are allowed."""

import re
import struct
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from resilin.core.kernels import loader as core
from resilin.distributed.wire import loader as distributed
from resilin.rpc.transports import loader as rpc

ROOT = Path(__file__).parents[2]
RELRO, STACK = 0x6474E552, 0x6474E551  # PT_GNU_RELRO, PT_GNU_STACK
DYNAMIC, WRITABLE = 2, 2  # PT_DYNAMIC, PF_W; PF_X is 1
NEEDED_NOW = {(24, None), (30, 8), (0x6FFFFFFB, 1)}  # DT_BIND_NOW; DF_BIND_NOW in DT_FLAGS; DF_1_NOW in DT_FLAGS_1
EXTENSIONS = {"core": core.native, "distributed": distributed.native, "rpc": rpc.native}


class Elf:
    """A 64-bit little-endian shared library: its program headers, its dynamic entries, the names it imports."""

    def __init__(self, path):
        self.data = Path(path).read_bytes()
        assert self.data[:6] == b"\x7fELF\x02\x01", path
        (start,) = struct.unpack_from("<Q", self.data, 32)
        size, count = struct.unpack_from("<HH", self.data, 54)
        rows = [struct.unpack_from("<IIQQQQQQ", self.data, start + i * size) for i in range(count)]
        self.segments = [(kind, flags, at, length) for kind, flags, at, _, _, length, _, _ in rows]
        self.dynamic = []
        for kind, _, at, length in self.segments:
            if kind == DYNAMIC:
                entries = struct.iter_unpack("<QQ", self.data[at : at + length])
                self.dynamic = [entry for entry in entries if entry[0]]

    def flags(self, kind):
        return [flags for found, flags, _, _ in self.segments if found == kind]

    def imports(self):
        return set(re.findall(rb"\0((?:__\w+_chk|__stack_chk_fail))(?=\0)", self.data))


@pytest.fixture(params=EXTENSIONS)
def elf(request):
    native = EXTENSIONS[request.param]
    if native is None:
        pytest.skip("this installation has no native code")
    return Elf(native.__file__)


def test_nothing_through_which_native_code_is_called_is_writable_once_it_is_loaded(elf):
    """Full RELRO: what the loader fills in is made read-only, and it fills in everything at the start."""
    assert elf.flags(RELRO)
    now = [
        tag for tag, value in elf.dynamic for kind, bit in NEEDED_NOW if tag == kind and (bit is None or value & bit)
    ]
    assert now, "the loader looks for functions when they are called first, so their table stays writable"


def test_no_stack_is_executable(elf):
    assert [flags & 1 for flags in elf.flags(STACK)] == [0]


def test_stacks_are_guarded_and_calls_of_libc_check_sizes(elf):
    names = elf.imports()
    assert b"__stack_chk_fail" in names
    assert names - {b"__stack_chk_fail"}, "no call of libc is fortified"


# ----------------------------------------------------------------------------------------------- versions


def requirements():
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return {found.name: found for found in map(Requirement, lines)}


def advisories():
    """(package, versions without it) of each row of the table in docs/dependencies.md."""
    rows = re.findall(r"^\| CVE.*?\| `(\w+)` \|.*\| ([^|]*) \|$", (ROOT / "docs" / "dependencies.md").read_text(), re.M)
    return [(package, [Version(text) for text in re.findall(r"\d+\.\d+\.\d+", fixed)]) for package, fixed in rows]


def test_no_version_with_a_known_hole_may_be_installed():
    known = advisories()
    assert {package for package, _ in known} == {"grpcio", "protobuf"}
    for package, fixed in known:
        assert fixed, package
        for one in fixed:
            last = (one.major, one.minor, one.micro - 1) if one.micro else (one.major, one.minor - 1, 99)
            before = ".".join(map(str, last))
            assert not requirements()[package].specifier.contains(before), f"{package} {before} lacks what {one} has"


@pytest.mark.parametrize(
    ("package", "refused", "allowed"),
    [
        ("grpcio", ["1.60.0", "1.67.1"], ["1.68.1", "1.85.3"]),
        ("protobuf", ["4.25.9", "5.29.5", "6.30.2", "6.31.1", "6.32.1", "6.33.4"], ["5.29.6", "6.33.5", "7.34.0"]),
    ],
)
def test_of_each_branch_the_versions_that_were_mended_may_be_installed(package, refused, allowed):
    specifier = requirements()[package].specifier
    assert not any(map(specifier.contains, refused))
    assert all(map(specifier.contains, allowed))


def test_what_is_installed_here_is_allowed():
    for package in ("grpcio", "protobuf"):
        assert requirements()[package].specifier.contains(version(package))
