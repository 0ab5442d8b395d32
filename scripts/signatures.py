"""Writes signatures of functions as type stubs need them, from the source of the functions."""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import importlib
import inspect
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any


class Names:
    """The names that a stub's annotations use, each under an alias, so that no name of the stub hides it."""

    def __init__(self) -> None:
        self._aliases: dict[tuple[str, str], str] = {}

    def alias(self, module: str, name: str) -> str:
        """The name in the stub of what is `name` in `module`."""
        if (module, name) not in self._aliases:
            taken = set(self._aliases.values())
            alias = f"_{name}"
            while alias in taken:
                alias += "_"
            self._aliases[module, name] = alias
        return self._aliases[module, name]

    def imports(self) -> Iterator[str]:
        """The import statements of the stub."""
        for (module, name), alias in sorted(self._aliases.items()):
            yield f"from {module} import {name} as {alias}"


def unwrapped(value: Any) -> Any:
    """The function behind decorators, such as those that let a tensor's class take over the call."""
    return inspect.unwrap(value) if callable(value) else value


@functools.cache
def tree_of(module: str) -> ast.Module:
    """The source of a module."""
    return ast.parse(inspect.getsource(importlib.import_module(module)))


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Those at the top of a module, with those of `if TYPE_CHECKING`."""
    for node in tree.body:
        yield node
        if isinstance(node, ast.If):
            yield from (*node.body, *node.orelse)


@functools.cache
def bindings(module: str) -> dict[str, tuple[str, str]]:
    """What the top of a module binds: name -> (the module that it is from, its name there or "" for the module)."""
    return {name: (home or module, there) for name, (home, there) in bound(tree_of(module)).items()}


def bound(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """What the top of a source binds, by statements that say it: as `bindings`; "" stands for the module itself."""
    found: dict[str, tuple[str, str]] = {}
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = "", node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            found |= {name: ("", name) for name in names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found |= {one.asname or one.name: (node.module, one.name) for one in node.names}
        elif isinstance(node, ast.Import):
            found |= {one.asname or one.name.partition(".")[0]: (one.name, "") for one in node.names}
    return found


def typed(module: str) -> set[str]:
    """The names whose types the top of a module says: functions, classes, what is annotated or imported."""
    said = ast.FunctionDef | ast.ClassDef | ast.AnnAssign | ast.Import | ast.ImportFrom
    untyped = {
        name.id
        for node in statements(tree_of(module))
        if not isinstance(node, said)
        for name in ast.walk(node)
        if isinstance(name, ast.Name)
    }
    return bindings(module).keys() - untyped


def source(function: Any) -> ast.FunctionDef | None:
    """The definition of a function that is made at the top of a module or class; None of others."""
    code = getattr(function, "__code__", None)
    if code is None or not isinstance(function, FunctionType):
        return None
    for node in ast.walk(tree_of(function.__module__)):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


class _Aliased(ast.NodeTransformer):
    """Replaces the names in an annotation by those of the stub."""

    def __init__(self, module: str, names: Names) -> None:
        self._module, self._bound, self._names = module, bindings(module), names

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        """Read an annotation that stands in quotes."""
        if isinstance(node.value, str):
            return self.visit(ast.parse(node.value, mode="eval").body)
        return node

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """A name of the module, or of Python."""
        if node.id in self._bound:
            return ast.Name(self._names.alias(*self._bound[node.id]))
        if not hasattr(builtins, node.id):
            raise LookupError(f"{self._module}: the annotation {node.id!r} is not bound at the top of the module")
        return ast.Name(self._names.alias("builtins", node.id))

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """A name of an imported module."""
        if not isinstance(node.value, ast.Name):
            raise LookupError(f"{self._module}: expected a name of a module, got {ast.unparse(node)!r}")
        module, name = self._bound[node.value.id]
        return ast.Name(self._names.alias(f"{module}.{name}" if name else module, node.attr))

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """Leave the texts of a Literal as they are."""
        if isinstance(node.value, ast.Name) and node.value.id == "Literal":
            return ast.Subscript(self.visit(node.value), node.slice)
        return self.generic_visit(node)


def annotation(node: ast.expr | None, module: str, names: Names) -> str:
    """An annotation in the stub's names; Any for none."""
    if node is None:
        return names.alias("typing", "Any")
    return ast.unparse(_Aliased(module, names).visit(copy.deepcopy(node)))


def is_made_in(function: Any, module: ModuleType) -> bool:
    """Whether a function is one that a function of `module` makes."""
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename == module.__file__ and bool(code.co_freevars)


def closed_over(function: Any, name: str) -> Any:
    """The value of a variable of the function that made this one."""
    return function.__closure__[function.__code__.co_freevars.index(name)].cell_contents


def parameters(function: Any, names: Names) -> list[str]:
    """What stands in the parentheses of a stub's `def`. LookupError for a function whose source is not found."""
    node = source(function)
    if node is None:
        raise LookupError(f"{function!r}: expected a function with a definition in a source file")
    module, args = function.__module__, node.args
    texts: list[str] = []
    positional = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(positional) - len(args.defaults)) + list(args.defaults)

    def text(one: ast.arg, default: ast.expr | None) -> str:
        if default is None:
            return f"{one.arg}: {annotation(one.annotation, module, names)}"
        shown = ast.unparse(default) if isinstance(default, ast.Constant) else "..."
        return f"{one.arg}: {annotation(one.annotation, module, names)} = {shown}"

    for index, (one, default) in enumerate(zip(positional, defaults, strict=True)):
        texts.append(text(one, default))
        if args.posonlyargs and index == len(args.posonlyargs) - 1:
            texts.append("/")
    if args.vararg:
        texts.append(f"*{text(args.vararg, None)}")
    elif args.kwonlyargs:
        texts.append("*")
    texts += [text(one, default) for one, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    if args.kwarg:
        texts.append(f"**{text(args.kwarg, None)}")
    return texts


def returns(function: Any, names: Names) -> str:
    """The annotation of what a function returns."""
    node = source(function)
    return annotation(node and node.returns, function.__module__, names)


def attributes(module: str, kind: str) -> set[str]:
    """The names that the source of a class binds in it."""
    body = next(node.body for node in tree_of(module).body if isinstance(node, ast.ClassDef) and node.name == kind)
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found
