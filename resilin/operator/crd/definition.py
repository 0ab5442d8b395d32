"""The CustomResourceDefinition as a whole. Pure."""

from __future__ import annotations

from typing import Any

from resilin.operator import names
from resilin.operator.crd import schema
from resilin.operator.crd.printer_columns import printer_columns


def definition() -> dict[str, Any]:
    """The CustomResourceDefinition of ElasticJob."""
    version = {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema.root()},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": printer_columns(),
    }
    own = {
        "plural": names.PLURAL,
        "singular": "elasticjob",
        "kind": names.KIND,
        "listKind": f"{names.KIND}List",
        "shortNames": ["ej"],
        "categories": ["all", "resilin"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.PLURAL}.{names.GROUP}"},
        "spec": {"group": names.GROUP, "names": own, "scope": "Namespaced", "versions": [version]},
    }
