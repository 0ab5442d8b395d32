"""Writes YAML, and knows its errors. PyYAML is optional (extra `k8s`) and loaded here alone."""

from __future__ import annotations

import json
from typing import Any

from resilin.errors import UsageError


def dump(value: Any) -> str:
    """YAML as people read it: keys in their order, and what occurs twice written twice, without anchors.

    UsageError: PyYAML is missing.
    """
    try:
        import yaml
    except ImportError:
        raise UsageError("writing YAML needs PyYAML: pip install 'resilin[k8s]'") from None
    apart = json.loads(json.dumps(value))  # PyYAML marks with anchors what is one object in memory
    return str(yaml.safe_dump(apart, sort_keys=False, width=120, allow_unicode=True))


def error_type() -> type[Exception]:
    """Return what a text that is no YAML raises where others read it. ImportError: PyYAML is missing."""
    import yaml

    found: type[Exception] = yaml.YAMLError
    return found
