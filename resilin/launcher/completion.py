"""Scripts that make a shell complete a command's flags, made from its parser."""

from __future__ import annotations

import argparse

SHELLS = ("bash", "zsh", "tcsh")


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """What `shell` has to evaluate. Flags complete before the program, files everywhere."""
    flags = [(max(a.option_strings, key=_worth), a) for a in parser._actions if a.option_strings]
    return {"bash": _bash, "zsh": _zsh, "tcsh": _tcsh}[shell](parser.prog, flags)


def _worth(spelling: str) -> tuple[bool, bool]:
    """The long spelling with dashes."""
    return spelling.startswith("--"), "_" not in spelling


def _choices(action: argparse.Action) -> str:
    return " ".join(str(choice) for choice in action.choices or ())


def _bash(command: str, flags: list[tuple[str, argparse.Action]]) -> str:
    name = "_" + command.replace("-", "_")
    cases = "".join(f"    {flag}) words='{_choices(action)}' ;;\n" for flag, action in flags if action.choices)
    return f"""\
{name}() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} words=
  case ${{COMP_WORDS[COMP_CWORD-1]}} in
{cases}    *) [[ $current == -* ]] && words='{" ".join(flag for flag, _ in flags)}' ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F {name} {command}"""


def _zsh(command: str, flags: list[tuple[str, argparse.Action]]) -> str:
    lines = []
    for flag, action in flags:
        value = "" if action.nargs == 0 else f":value:({_choices(action)})" if action.choices else ":value:_files"
        lines.append(f"  '{flag}[{_plain(action.help or '')}]{value}'")
    body = " \\\n".join([*lines, "  '*:file:_files'"])
    name = "_" + command.replace("-", "_")
    return f"#compdef {command}\n{name}() {{\n_arguments -S \\\n{body}\n}}\ncompdef {name} {command}"


def _plain(text: str) -> str:
    """`text` without what zsh reads as its own signs."""
    return "".join(c for c in text if c not in "[]'`\\").replace(":", " ")


def _tcsh(command: str, flags: list[tuple[str, argparse.Action]]) -> str:
    values = "".join(f" 'n/{flag}/({_choices(action)})/'" for flag, action in flags if action.choices)
    names = " ".join(flag.removeprefix("--") for flag, _ in flags)
    return f"complete {command}{values} 'c/--/({names})/' 'n/*/f/'"
