"""How a host and a port stand together, `resilin/_base/host_port.py` alone knows: IPv6 needs brackets everywhere."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOME = ROOT / "resilin" / "_base" / "host_port.py"

# without any of these no line of a file can be at fault: parsing all of them takes seconds
SIGNS = re.compile(r"""\}:\{[^}]*port|(?i:endpoint|addr|host|netloc)\S*\(['"]:['"]|['"]\[\]?['"]|\.hostname""")


def says(node):
    return ast.unparse(node).lower()


def faults(tree):
    """Where code writes `host:port` or takes it apart by itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            for before, colon, after in zip(node.values, node.values[1:], node.values[2:], strict=False):
                pieces = isinstance(before, ast.FormattedValue) and isinstance(after, ast.FormattedValue)
                if pieces and isinstance(colon, ast.Constant) and colon.value == ":" and "port" in says(after):
                    yield node.lineno, "writes"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            takes = node.func.attr in ("partition", "rpartition", "split", "rsplit")
            of = says(node.func.value)
            if takes and says(node.args[0]) == "':'" and any(w in of for w in ("endpoint", "addr", "host", "netloc")):
                yield node.lineno, "reads"
            if node.func.attr in ("strip", "lstrip", "removeprefix") and says(node.args[0]) in ("'[]'", "'['"):
                yield node.lineno, "reads"
        if isinstance(node, ast.Attribute) and node.attr == "hostname":
            yield node.lineno, "reads"


@pytest.mark.parametrize("folder", ["resilin", "scripts", "examples"])
def test_no_other_file_writes_or_reads_an_address(folder):
    wrong = [
        f"{path.relative_to(ROOT)}:{line} {what} an address"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path != HOME and SIGNS.search(text := path.read_text())
        for line, what in faults(ast.parse(text))
    ]
    assert not wrong, f"{wrong}: resilin._base.host_port has parse, host and join"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('f"{host}:{port}"', ["writes"]),
        ('f"at {self.host}:{self.port}!"', ["writes"]),
        ('endpoint.rpartition(":")', ["reads"]),
        ('host.strip("[]")', ["reads"]),
        ("urlsplit(url).hostname", ["reads"]),
        ('f"{key}:{value}"', []),
        ('nodes.partition(":")', []),
    ],
)
def test_the_check_knows_an_address(code, found):
    assert SIGNS.search(code) or not found
    assert [what for _, what in faults(ast.parse(code))] == found
