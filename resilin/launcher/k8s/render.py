"""`resilin k8s render -- elastic-run ...`: an ElasticJob for a command line.

Flags that an ElasticJob has fields for go there. Those that say where nodes meet are left out, for the operator gives
them to each pod, and a comment names them. All others stay in the command.

No shell is in between: a word is what the program gets, `$HOME` as well as `$(date)`. Kubernetes would put a variable
in the place of `$(NAME)`, so that is written as it must be to stay what it is.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterator
from typing import Any

from resilin.errors import UsageError
from resilin.launcher import arguments, exit_codes, flag_types, output
from resilin.operator import names, yaml_text
from resilin.operator.crd import schema
from resilin.operator.crd.parts import IMAGE, LABEL_NAME

_RUNNERS = ("elastic-run", "torchrun")
_MOST_NAME_CHARS = 50
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_INTO_FIELDS = frozenset(
    ("nnodes", "nproc_per_node", "max_restarts", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "shutdown_timeout")
) | {"hang_timeout", "config"}
_THE_OPERATORS = frozenset(
    ("node_rank", "standalone", "rdzv_conf", "master_addr", "master_port", "local_addr", "secret_file", "health_port")
) | {"termination_message"}
_MEETING = frozenset({"rdzv_backend", "rdzv_endpoint"})  # the operator's, too, unless the nodes meet in an etcd
_REFERENCE = re.compile(r"\$(?=[$(])")
_PROCESSES = ("auto", "cpu", "gpu")
_MOST_PROCESSES, _MOST_LABEL_CHARS, _DAY_S = 64, 63, 86_400
_NOT_FLAGS = frozenset({"training_script", "training_script_args"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `render`."""
    add = parser.add_argument
    add("--image", required=True, help="the image of the pods: resilin and the program are in it")
    add("--name", help="the job's name (default: that of --rdzv-id, else of the program)")
    add("--namespace", help="its namespace (default: none is written, kubectl's counts)")
    add("--gpus", type=int, default=0, metavar="N", help="NVIDIA GPUs for each pod (default 0)")
    add("--shm-size", metavar="SIZE", help="size of /dev/shm, such as 1Gi")
    add("--queue", metavar="NAME", help="Kueue's queue")
    add("--json", action="store_true", help="print JSON instead of YAML")
    add("words", nargs=argparse.REMAINDER, metavar="-- elastic-run ...", help="the command line")


def run(args: argparse.Namespace) -> int:
    """Print the job. UsageError: there is none for this command line."""
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not words or words[0].rpartition("/")[2] not in _RUNNERS:
        raise UsageError("expected a command line behind --, such as: -- elastic-run --nnodes 2:4 train.py")
    launch = arguments.parse(words[1:])
    job = manifest(args, launch, words[0])
    if args.json:
        output.show_json(job, indent=2)
        return exit_codes.OK
    left_out = sorted(launch.given & (_THE_OPERATORS if "rdzv" in job["spec"] else _THE_OPERATORS | _MEETING))
    if left_out:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in left_out)
        output.show(f"# Left out, for the operator gives it to each pod: {flags}")
    output.show(*yaml_text.dump(job).splitlines())
    return exit_codes.OK


def manifest(args: argparse.Namespace, launch: argparse.Namespace, runner: str = "elastic-run") -> dict[str, Any]:
    """The ElasticJob for the options of `render` and a parsed command line."""
    low, high = flag_types.nodes(launch.nnodes)
    if high > schema.MOST_REPLICAS:
        raise UsageError(f"--nnodes: expected at most {schema.MOST_REPLICAS} pods, got {launch.nnodes}")
    if not re.search(IMAGE, args.image):
        raise UsageError(f"--image: expected the name of an image, got {args.image!r}")
    container: dict[str, Any] = {"name": names.CONTAINER, "image": args.image, "command": command(launch, runner)}
    if args.gpus < 0:
        raise UsageError(f"--gpus: expected 0 or more, got {args.gpus}")
    if args.gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": args.gpus}}
    spec: dict[str, Any] = {
        "replicas": high,
        "minReplicas": low,
        "maxReplicas": high,
        "nprocPerNode": _processes(str(launch.nproc_per_node)),
        "maxRestarts": _whole("--max-restarts", launch.max_restarts, 0, 1_000_000),
        **_rdzv(launch),
        **_policy(launch),
        **_field("--shm-size", args.shm_size, "shmSize", "a size above 0, such as 1Gi"),
        **_field("--queue", args.queue, "queueName", "the name of a queue"),
        "template": {"spec": {"containers": [container]}},
    }
    metadata = {"name": _name(args.name, launch)}
    if args.namespace is not None:
        if not re.fullmatch(LABEL_NAME, args.namespace) or len(args.namespace) > _MOST_LABEL_CHARS:
            raise UsageError(f"--namespace: expected the name of a namespace, got {args.namespace!r}")
        metadata["namespace"] = args.namespace
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": spec}


def command(launch: argparse.Namespace, runner: str = "elastic-run") -> list[str]:
    """The command of the pods: what was given and has no field of its own."""
    words = [runner, *_flags(launch), *(["--"] if launch.training_script.startswith("-") else [])]
    words += [launch.training_script, *launch.training_script_args]
    return [_REFERENCE.sub("$$", word) for word in words]


def _flags(launch: argparse.Namespace) -> Iterator[str]:
    taken = _INTO_FIELDS | _THE_OPERATORS | _NOT_FLAGS
    if launch.hang_timeout == "off":  # there is no field for it
        taken -= {"hang_timeout"}
    for action in arguments.parser()._actions:
        if action.dest not in launch.given or action.dest in taken:
            continue
        flag = next(option for option in action.option_strings if option.startswith("--"))
        value = getattr(launch, action.dest)
        if action.nargs != 0:
            yield f"{flag}={value}"
        elif value:
            yield flag


def _field(flag: str, value: str | None, name: str, wanted: str) -> dict[str, Any]:
    """The field of the spec that a flag of `render` is, checked as the API server would."""
    if value is None:
        return {}
    known = schema.spec()["properties"][name]
    if not re.search(known["pattern"], value) or len(value) > known["maxLength"]:
        raise UsageError(f"{flag}: expected {wanted}, got {value!r}")
    return {name: value}


def _whole(flag: str, value: float, least: int, most: int) -> int:
    """`value` rounded up, within what an ElasticJob takes."""
    if not least <= value <= most:
        raise UsageError(f"{flag}: expected {least} to {most}, got {value:g}")
    return math.ceil(value)


def _processes(text: str) -> int | str:
    if text in _PROCESSES:
        return text
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_PROCESSES:
        words = ", ".join(_PROCESSES)
        raise UsageError(f"--nproc-per-node: expected 1 to {_MOST_PROCESSES} or one of {words}, got {text!r}")
    return int(text)


def _rdzv(launch: argparse.Namespace) -> dict[str, Any]:
    if launch.rdzv_backend == "file":
        raise UsageError("--rdzv-backend file: pods share no folder; expected embedded or etcd")
    if not launch.rdzv_backend.startswith("etcd"):
        return {}
    if not launch.rdzv_endpoint:
        raise UsageError("--rdzv-backend etcd: expected --rdzv-endpoint, which pods can reach")
    endpoint = launch.rdzv_endpoint.removeprefix("etcd://")
    if "?" in endpoint or "@" in endpoint:
        raise UsageError(
            "--rdzv-endpoint: expected HOST:PORT,... of the etcd alone: files of TLS are a Secret that rdzv.tls names, "
            "and a login is RESILIN_ETCD_PASSWORD with --rdzv-conf user=NAME in the template's variables"
        )
    return {"rdzv": {"backend": "etcd", "endpoint": endpoint}}


def _policy(launch: argparse.Namespace) -> dict[str, Any]:
    policy: dict[str, Any] = {}
    if launch.shutdown_timeout is not None:
        policy["graceSeconds"] = _whole("--shutdown-timeout", launch.shutdown_timeout, 0, _DAY_S)
    hang = flag_types.hang_timeout(launch.hang_timeout)
    if hang:
        policy["hangTimeoutSeconds"] = max(5, _whole("--hang-timeout", hang, 0, _DAY_S))
    return {"elasticPolicy": policy} if policy else {}


def _name(given: str | None, launch: argparse.Namespace) -> str:
    """The job's name: what was asked for, or what can be made a name of."""
    if given is not None:
        if len(given) > _MOST_NAME_CHARS or not _NAME.fullmatch(given):
            wanted = f"at most {_MOST_NAME_CHARS} lower-case letters, digits and -, a letter first"
            raise UsageError(f"--name: expected {wanted}, got {given[:60]!r}")
        return given
    program = launch.training_script.rpartition("/")[2].removesuffix(".py")
    source = launch.rdzv_id if launch.rdzv_id != "none" else program
    made = re.sub("[^a-z0-9]+", "-", source.lower()).strip("-")[:_MOST_NAME_CHARS].strip("-")
    return made if _NAME.fullmatch(made) else "job"
