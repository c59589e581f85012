"""The four CustomResourceDefinitions, generated from the schema.

python -m rlrun.codegen.crd             write crds/*.yaml
python -m rlrun.codegen.crd --check     fail if they differ from the schema
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from rlrun.api.adapter import RLAdapter
from rlrun.api.base.kubernetes_types import KubernetesObject
from rlrun.api.checkpoint import RLCheckpoint
from rlrun.api.model import RLModel
from rlrun.api.run import RLRun
from rlrun.codegen.generated_files import update
from rlrun.codegen.openapi import VALIDATIONS, cel_rules, structural
from rlrun.constants import GROUP, VERSION

HEADER = "# Generated from operator/rlrun/schema by `python -m rlrun.codegen.crd`; change the schema, not this file.\n"


@dataclass(frozen=True)
class Column:
    """One column of `kubectl get`."""

    name: str
    path: str
    description: str
    type: str = "string"
    wide: bool = False

    def to_json(self) -> dict[str, Any]:
        """As additionalPrinterColumns wants it."""
        return {
            "name": self.name,
            "type": self.type,
            "jsonPath": self.path,
            "description": self.description,
            "priority": int(self.wide),
        }


AGE = Column("Age", ".metadata.creationTimestamp", "Time since the object was created.", "date")


@dataclass(frozen=True)
class CrdKind:
    """One kind of the group, and how people and kubectl call it."""

    model: type[KubernetesObject]
    plural: str
    short_name: str
    columns: tuple[Column, ...]
    namespaced: bool = True
    categories: tuple[str, ...] = ("rl",)
    """Never a name of a kind: `kubectl get rlrun NAME` would then mean the whole category."""
    selectable: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The kind: `RLRun`."""
        return self.model.__name__

    @property
    def crd_name(self) -> str:
        """Name of the CustomResourceDefinition: `rlruns.rlrun.dev`."""
        return f"{self.plural}.{GROUP}"


KINDS = (
    CrdKind(
        RLRun,
        "rlruns",
        "rlr",
        (
            Column("Phase", ".status.phase", "Where the run stands."),
            Column("Step", ".status.progress.step", "Optimizer steps done.", "integer"),
            Column("Max", ".spec.maxSteps", "Optimizer steps asked for.", "integer"),
            Column("Reward", ".status.progress.reward", "Mean reward of the newest batch.", "number"),
            Column("Model", ".spec.model", "Model that is trained."),
            Column("Restarts", ".status.restarts", "Restarts of containers and replacements of pods.", "integer"),
            AGE,
            Column("Reason", ".status.reason", "Why the run is in its phase.", wide=True),
            Column("Checkpoint", ".status.lastCheckpoint", "Newest Ready checkpoint.", wide=True),
            Column("Policy", ".status.progress.policyVersion", "Policy that samples now.", "integer", wide=True),
            Column("ETA", ".status.progress.etaSeconds", "Seconds until the last step.", "number", wide=True),
        ),
        categories=("rl", "all"),
        selectable=(".spec.model", ".status.phase"),
    ),
    CrdKind(
        RLCheckpoint,
        "rlcheckpoints",
        "rlc",
        (
            Column("Run", ".spec.runName", "Run that made it."),
            Column("Step", ".spec.step", "Optimizer steps behind it.", "integer"),
            Column("Phase", ".status.phase", "Where it stands."),
            Column("Size", ".status.sizeBytes", "Size of all files in bytes.", "integer"),
            Column("Model", ".spec.model", "Model it was trained from."),
            AGE,
            Column("Reward", ".status.reward", "Mean reward of its step.", "number", wide=True),
            Column("URI", ".spec.uri", "Its folder in S3.", wide=True),
        ),
        selectable=(".spec.runName", ".spec.model", ".status.phase"),
    ),
    CrdKind(
        RLAdapter,
        "rladapters",
        "rla",
        (
            Column("Run", ".spec.runName", "Run that made it."),
            Column("Step", ".spec.step", "Optimizer steps behind it.", "integer"),
            Column("Phase", ".status.phase", "Where it stands."),
            Column("Deployed", ".status.deploymentState", "Where its deployment stands."),
            AGE,
            Column("Reward", ".status.reward", "Mean reward of its step.", "number", wide=True),
            Column("URI", ".spec.uri", "Its folder in S3.", wide=True),
        ),
        selectable=(".spec.runName", ".spec.model", ".status.phase"),
    ),
    CrdKind(
        RLModel,
        "rlmodels",
        "rlm",
        (
            Column("Model", ".spec.id", "What runs write in spec.model."),
            Column("SeqLen", ".spec.seqLen", "Longest sequence in tokens.", "integer"),
            Column("Rank", ".spec.lora.rank", "Rank of the adapters.", "integer"),
            Column("Replicas", ".spec.inference.replicas", "Inference engines of a run.", "integer"),
            Column("GPUs", ".spec.trainer.gpus", "GPUs of each trainer pod.", "integer"),
            AGE,
            Column("Source", ".spec.source", "Where the weights are.", wide=True),
        ),
        namespaced=False,
        selectable=(".spec.id",),
    ),
)


def crd(kind: CrdKind) -> dict[str, Any]:
    """The CustomResourceDefinition of one kind."""
    fields = kind.model.model_fields
    schema: dict[str, Any] = {
        "type": "object",
        "description": kind.model.__doc__,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"{GROUP}/{VERSION}."},
            "kind": {"type": "string", "description": f"{kind.name}."},
            # No description: the API server wants nothing here but what limits the name.
            "metadata": {"type": "object"},
            "spec": {**structural(_part(kind, "spec")), "description": fields["spec"].description},
            "status": {
                **structural(_part(kind, "status"), defaults=False),
                "description": fields["status"].description,
            },
        },
    }
    if validations := cel_rules(kind.model):
        schema[VALIDATIONS] = validations
        # A rule's fieldPath must exist in the schema.
        schema["properties"]["metadata"]["properties"] = {"name": {"type": "string", "maxLength": 253}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.crd_name},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
                "shortNames": [kind.short_name],
                "categories": list(kind.categories),
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [column.to_json() for column in kind.columns],
                    "selectableFields": [{"jsonPath": path} for path in kind.selectable],
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def render() -> dict[str, str]:
    """File name -> YAML of every CustomResourceDefinition."""
    return {
        f"{kind.crd_name}.yaml": HEADER
        + yaml.dump(crd(kind), Dumper=_NoAliases, sort_keys=False, width=120, allow_unicode=True)
        for kind in KINDS
    }


class _NoAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _part(kind: CrdKind, field: str) -> type[BaseModel]:
    annotation = kind.model.model_fields[field].annotation
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        raise TypeError(f"{kind.name}.{field} must be a model")
    return annotation


def main() -> int:
    """Write or check the files; 1 when a check finds a difference."""
    parser = argparse.ArgumentParser(prog="python -m rlrun.codegen.crd", description="Generate the CRDs.")
    parser.add_argument("--check", action="store_true", help="only compare, and fail on a difference")
    parser.add_argument("--output", type=Path, default=Path("crds"), help="folder of the files (default: crds)")
    options = parser.parse_args()
    return update(options.output, render(), check=options.check, command="python -m rlrun.codegen.crd")


if __name__ == "__main__":
    sys.exit(main())
