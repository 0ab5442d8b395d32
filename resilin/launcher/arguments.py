"""The command line of `elastic-run`: torchrun's flags, names and defaults, each with an environment variable.

Every long flag is accepted with dashes and with underscores. A flag that is not given takes its value from
RESILIN_<NAME>, else from PET_<NAME> (torchrun's), else from the file of --config, else from its default.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from resilin._base import env, secret
from resilin.errors import UsageError
from resilin.launcher import completion, exit_codes

_DESCRIPTION = """\
Start the workers of a training job on this node and keep the job going when workers or nodes come and go.
It takes torchrun's options and gives workers torchrun's environment variables."""

_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
_COMPLETION_HELP = "print what makes the shell complete the flags, e.g. `source <(elastic-run --print-completion bash)`"
_SECRET_HELP = "print a new secret for a job, e.g. `elastic-run --make-secret > FILE`, for --secret-file on all nodes"
_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_KINDS: dict[Any, str] = {int: "an integer", float: "a number"}


@dataclass(frozen=True)
class _Given:
    """What `source`, an environment variable or a file, says about a flag."""

    source: str
    text: str

    def value(self, flag: argparse.Action) -> Any:
        """The value of `flag`. ValueError names what was expected."""
        if flag.nargs == 0 or flag.choices:  # a switch, or one of several words
            words = {str(word): word for word in flag.choices or ()} or _SWITCH
            word = self.text if flag.choices else self.text.lower()
            if word not in words:
                raise ValueError(f"one of {', '.join(words)}")
            return words[word]
        try:
            return flag.type(self.text) if callable(flag.type) else self.text
        except ValueError:
            raise ValueError(_KINDS[flag.type]) from None


@dataclass(frozen=True)
class _NotGiven:
    """The value of a flag that the command line does not have, until all sources are known."""

    default: Any
    environment: _Given | None


class _Parser(argparse.ArgumentParser):
    """argparse with dash and underscore spellings, further sources of values, and one-line errors."""

    def flag(self, name: str, *short: str, default: Any = None, **options: Any) -> None:
        """Add `--name`, which may also come from its environment variables or a file."""
        dest = name.lstrip("-").replace("-", "_")
        spellings = list(dict.fromkeys((name, "--" + dest)))
        given = None
        for variable in (f"PET_{dest.upper()}", f"RESILIN_{dest.upper()}"):
            if (text := env.get(variable)) is not None:
                given = _Given(f"environment variable {variable}", text)
        if options.get("action") == "store_true":
            default = False
        self.add_argument(*short, *spellings, dest=dest, default=_NotGiven(default, given), **options)

    def settle(self, parsed: argparse.Namespace) -> argparse.Namespace:
        """Fill in what the command line does not have; argparse itself checks flags alone.

        `given` holds the names of the flags that somebody chose, wherever that was.
        """
        unsettled = {a.dest: a for a in self._actions if isinstance(getattr(parsed, a.dest, None), _NotGiven)}
        flags = {action.dest for action in self._actions if action.option_strings and action.dest != "help"}
        flags.discard(argparse.SUPPRESS)
        parsed.given = frozenset(flags - unsettled.keys())
        self._settle_one(parsed, unsettled.pop("config", None), {})
        settings = {}
        if parsed.config:
            from resilin.launcher import config_file  # loads tomllib (5 ms), which most launches never need

            settings = config_file.read(parsed.config, flags - {"config"})
        given = {dest: _Given(*where) for dest, where in settings.items()}
        for action in unsettled.values():
            self._settle_one(parsed, action, given)
        return parsed

    def _settle_one(self, parsed: argparse.Namespace, action: argparse.Action | None, file: dict[str, _Given]) -> None:
        if action is None:
            return
        unset: _NotGiven = getattr(parsed, action.dest)
        given = unset.environment or file.get(action.dest)
        try:
            setattr(parsed, action.dest, given.value(action) if given else unset.default)
        except ValueError as error:
            assert given is not None
            self.error(f"{given.source}: expected {error}, got {given.text!r}")
        if given:
            parsed.given |= {action.dest}

    def error(self, message: str) -> NoReturn:
        """One line, no usage dump."""
        self.exit(exit_codes.USAGE, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


class _Completion(argparse.Action):
    """Prints a completion script and ends the program."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "dest": argparse.SUPPRESS})

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        print(completion.script(parser, values))
        parser.exit()


class _MakeSecret(argparse.Action):
    """Prints a fresh secret and ends the program."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "dest": argparse.SUPPRESS, "nargs": 0})

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        print(secret.new_secret())
        parser.exit()


def parser() -> _Parser:
    """The parser. Values that need more than argparse are checked in `launcher.plan`."""
    result = _Parser(
        prog="elastic-run",
        description=_DESCRIPTION,
        epilog=exit_codes.HELP
        + "\nEvery flag can be given as RESILIN_<FLAG> or PET_<FLAG> in the environment, or in the file of --config.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_size(result)
    _add_rendezvous(result)
    _add_program(result)
    _add_output(result)
    result.flag("--config", metavar="FILE", help='flags in TOML, such as `nnodes = "2:4"`; flags and environment win')
    result.flag("--dry-run", action="store_true", help="say what would be run, and with what; start nothing")
    result.add_argument("--make-secret", "--make_secret", action=_MakeSecret, help=_SECRET_HELP)
    result.add_argument("--print-completion", action=_Completion, choices=completion.SHELLS, help=_COMPLETION_HELP)
    result.add_argument(
        "training_script", metavar="PROGRAM", help="a script, a module (-m) or any command (--no-python)"
    )
    own = result.add_argument("training_script_args", metavar="...", nargs=argparse.REMAINDER, help="its own arguments")
    own.required = False  # argparse would name it when PROGRAM is missing
    return result


def _add_size(p: _Parser) -> None:
    p.flag("--nnodes", default="1:1", metavar="MIN:MAX", help="nodes: a number or a range (default 1:1)")
    p.flag(
        "--nproc-per-node", default="1", metavar="N", help="workers per node: a number, auto, cpu or gpu (default 1)"
    )
    p.flag(
        "--max-restarts",
        default=0,
        type=int,
        metavar="N",
        help="failures answered with a new worker, over the whole job (default 0)",
    )
    p.flag(
        "--max-step-failures",
        default=3,
        type=int,
        metavar="N",
        help="failures at the same step, in a row, that end the job whatever --max-restarts says (default 3; 0: any)",
    )
    p.flag("--node-rank", default=-1, type=int, metavar="R", help="this node's place in a static job")
    p.flag("--role", default="default", metavar="NAME", help="a name for the workers, used in prefixes (default)")


def _add_rendezvous(p: _Parser) -> None:
    p.flag("--standalone", action="store_true", help="one node that needs nobody: no endpoint, a secret of its own")
    p.flag(
        "--rdzv-backend",
        default="",
        metavar="NAME",
        help="embedded (also: c10d), etcd, file or static; default: embedded with an endpoint, else static",
    )
    p.flag(
        "--rdzv-endpoint",
        default="",
        metavar="HOST:PORT",
        help="where the nodes meet; for file: a folder; for etcd: one or several, separated by commas",
    )
    p.flag("--rdzv-id", default="none", metavar="JOB", help="the job's name (default none)")
    p.flag(
        "--rdzv-conf",
        default="",
        metavar="K=V,...",
        help="join_timeout (600), last_call_timeout (0.5), rejoin_timeout (0), read_timeout (30), lease_ttl (5), "
        "is_host; seconds",
    )
    p.flag("--master-addr", default="127.0.0.1", metavar="HOST", help="static: address of the node with rank 0")
    p.flag(
        "--master-port",
        default=None,
        type=int,
        metavar="PORT",
        help="static: rank 0's port (default 29500); otherwise a free port is held",
    )
    p.flag(
        "--local-addr",
        default=None,
        metavar="HOST",
        help="this node's address; default: the interface towards the endpoint",
    )
    p.flag("--secret-file", default=None, metavar="FILE", help="holds the job's secret; default: RESILIN_SECRET")
    p.flag(
        "--monitor-interval",
        default=0.1,
        type=float,
        metavar="S",
        help="accepted; deaths are seen at once, nothing is polled",
    )
    p.flag(
        "--start-method",
        default="auto",
        choices=["auto", "spawn", "fork", "forkserver"],
        help="spawn: workers are fresh interpreters; else a program that imports resilin is run in processes "
        "forked from one that has imported it (default auto)",
    )
    p.flag(
        "--shutdown-timeout",
        default=None,
        type=float,
        metavar="S",
        help="between asking a worker to end and killing it (default 30)",
    )
    p.flag(
        "--hang-timeout",
        default="auto",
        metavar="S",
        help="seconds without a step after which the worker that holds the others up is ended; auto (default): learned "
        "from the steps, at least 5; off",
    )
    p.flag(
        "--signals-to-handle",
        default=_SIGNALS,
        metavar="NAMES",
        help=f"signals that end the job gracefully (default {_SIGNALS})",
    )


def _add_program(p: _Parser) -> None:
    p.flag(
        "--virtual-local-rank",
        action="store_true",
        help="each worker has LOCAL_RANK 0 and CUDA_VISIBLE_DEVICES with its one device",
    )
    p.flag("--module", "-m", action="store_true", help="the program is a Python module")
    p.flag("--as-torch", action="store_true", help="the program is for PyTorch: `torch` gives it resilin's modules")
    p.flag("--no-python", action="store_true", help="the program is not Python: run it as it stands")
    p.flag("--run-path", action="store_true", help="accepted; scripts run as __main__ anyway")


def _add_output(p: _Parser) -> None:
    p.flag(
        "--log-dir",
        default=None,
        metavar="DIR",
        help="keep output and error files under DIR/<job>_<random>/attempt_<n>/<local rank>/",
    )
    p.flag(
        "--redirects",
        "-r",
        default="0",
        metavar="R",
        help="output to files: 0 none, 1 stdout, 2 stderr, 3 both, or a map 0:1,1:3",
    )
    p.flag("--tee", "-t", default="0", metavar="T", help="output to files and terminal; values as for --redirects")
    p.flag(
        "--log-line-prefix-template",
        default="",
        metavar="T",
        help="before teed lines; knows ${role_name} ${local_rank} ${rank} ${hostname}",
    )
    p.flag(
        "--local-ranks-filter",
        default="",
        metavar="R,...",
        help="local ranks whose output reaches the terminal (default all)",
    )
    p.flag(
        "--ranks-filter",
        default="",
        metavar="R,...",
        help="global ranks whose output reaches the terminal (default all), the same on all nodes",
    )
    p.flag(
        "--log-ranks",
        default="local",
        choices=["local", "global"],
        help="what the numbers in maps of --redirects and --tee are (default local)",
    )
    for name in ("stdout", "stderr"):
        p.flag(
            f"--duplicate-{name}-filters",
            default="",
            metavar="TEXT,...",
            help=f"teed lines of {name} with one of the texts also go to DIR/.../attempt_<n>/filtered_{name}.log",
        )
    p.flag("--event-log", default=None, metavar="FILE", help="append JSON events: death, generation, recovered")
    p.flag(
        "--health-port", type=int, default=0, metavar="PORT",
        help="answer gRPC health checks there, at this node's address (default 0: nowhere)",
    )  # fmt: skip
    p.flag(
        "--termination-message", default=None, metavar="FILE",
        help="write there how it ended, unless it succeeded: for a kubelet, /dev/termination-log",
    )  # fmt: skip
    for name, default in (("event-log-handler", "null"), ("logs-specs", "default"), ("numa-binding", "none")):
        p.flag(f"--{name}", default=default, metavar="NAME", help=f"accepted; only {default} is available")
    p.flag("--quiet", "-q", action="store_true", help="no lines about deaths, generations and recoveries")
    p.flag("--verbose", "-v", action="store_true", help="log what the agent decides and why")


def log_level(verbose: bool = False) -> str:
    """The level to log at: INFO when `verbose`, else the one in LOGLEVEL, else WARNING."""
    level = (env.get("LOGLEVEL", "WARNING") or "WARNING").upper()
    if level not in logging.getLevelNamesMapping():
        raise UsageError(f"environment variable LOGLEVEL: expected DEBUG, INFO, WARNING or ERROR, got {level!r}")
    return "INFO" if verbose and level == "WARNING" else level


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse `argv` (None: the process's own). Exits with code 2 on a mistake, 0 after --help."""
    known = parser()
    return known.settle(known.parse_args(argv))
