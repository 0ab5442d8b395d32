"""No code picks a free port, lets it go, and passes its number on: by then it may be another program's."""

import ast
import socket
import textwrap
from pathlib import Path

import pytest

from resilin.testing import ports

ROOT = Path(__file__).parents[2]
FOLDERS = ("resilin", "tests", "benchmarks", "examples", "scripts")


def lets_go(function):
    """Whether a function asks the kernel for any port, and its number outlives the socket."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    if not any(asks_for_any_port(call) for call in calls) or not any(name(call) == "getsockname" for call in calls):
        return False
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function)):
        return False  # it is lent to a block
    closed = [call.end_lineno for call in calls if name(call) == "close"]
    blocks = [node for node in ast.walk(function) if isinstance(node, ast.With) and opens_a_socket(node)]
    ends = [(block, block.end_lineno) for block in blocks] + [(function, line) for line in closed]
    return any(number_leaves(block, line, function) for block, line in ends)


def number_leaves(block, last, function):
    """Whether what `getsockname` says in `block` is returned, or kept in a name that is read behind line `last`."""
    for node in ast.walk(block):
        if isinstance(node, ast.Return) and block is not function and node.value and says_the_name(node.value):
            return True
        if isinstance(node, ast.Assign) and says_the_name(node.value):
            kept = {one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name)}
            names = (one for one in ast.walk(function) if isinstance(one, ast.Name) and one.lineno > last)
            if any(one.id in kept for one in names):
                return True
    return False


def says_the_name(tree):
    return any(isinstance(node, ast.Call) and name(node) == "getsockname" for node in ast.walk(tree))


def opens_a_socket(block):
    calls = (node for item in block.items for node in ast.walk(item.context_expr) if isinstance(node, ast.Call))
    return any(name(call) in ("socket", "create_server") for call in calls)


def asks_for_any_port(call):
    address = call.args[0] if call.args and name(call) in ("bind", "create_server") else None
    port = address.elts[1] if isinstance(address, ast.Tuple) and len(address.elts) > 1 else None
    return isinstance(port, ast.Constant) and port.value == 0


def name(call):
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def functions(text):
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_port_is_held_until_its_server_has_it(folder):
    wrong = [
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "getsockname" in (text := path.read_text())
        for function in functions(text)
        if lets_go(function)
    ]
    assert not wrong, f"{wrong}: hold the port with resilin.testing.ports.held, or let the server bind port 0 itself"


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ('with socket.create_server(("", 0)) as s:\n    return s.getsockname()[1]', True),
        ('with socket.socket() as s:\n    s.bind(("", 0))\n    port = s.getsockname()[1]\nserve(port)', True),
        ('s = socket.socket()\ns.bind(("", 0))\nport = s.getsockname()[1]\ns.close()\nreturn port', True),
        ('for s in all:\n    s.bind(("", 0))\nports = [s.getsockname() for s in all]\ns.close()\nserve(ports)', True),
        ('with socket.socket() as s:\n    s.bind(("", 0))\n    serve(s.getsockname()[1])', False),
        ('with socket.socket() as s:\n    s.bind(("", 0))\n    yield s.getsockname()[1]', False),
        ('s = socket.create_server(("", 0))\nreturn s, s.getsockname()[1]', False),
    ],
)
def test_the_check_knows_a_port_that_is_let_go(body, wrong):
    (function,) = functions(f"def f():\n{textwrap.indent(body, '    ')}")
    assert lets_go(function) is wrong


def test_a_held_port_is_nobody_elses_and_a_server_that_names_it_may_listen():
    with ports.held(2) as (port, other):
        assert port != other
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port))  # as a program that was told the number by chance
        for _ in range(2):  # its server may end, and another one may come
            with socket.create_server(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port), 5):
                pass
