"""`resilin k8s crd`: what `kubectl apply -f -` takes to teach a cluster what an ElasticJob is."""

from __future__ import annotations

import argparse

from resilin.launcher import exit_codes, output
from resilin.operator import yaml_text
from resilin.operator.crd.definition import definition


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `crd`."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of YAML")


def run(args: argparse.Namespace) -> int:
    """Print the definition."""
    if args.json:
        output.show_json(definition(), indent=2)
    else:
        output.show(*yaml_text.dump(definition()).splitlines())
    return exit_codes.OK
