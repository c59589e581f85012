"""The four CustomResourceDefinitions and the admission policy of RLRun, generated from the schema.

The files have the form in which the API server stores the objects, so that tools find no difference between a file and
its object.

    python -m rlrun.codegen.crd             write charts/rlrun/files/crds/*.yaml
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
from rlrun.codegen.admission_policy import policy_objects
from rlrun.codegen.generated_files import update
from rlrun.codegen.openapi import MAP_TYPE, PRESERVE, VALIDATIONS, cel_rules, structural
from rlrun.constants import GROUP, VERSION

FOLDER = Path("charts/rlrun/files/crds")
"""Folder of the files in the repository. Helm can only read files inside the chart."""
HEADER = "# Generated from core/rlrun/api by `python -m rlrun.codegen.crd`; change the schema, not this file.\n"


@dataclass(frozen=True)
class PrinterColumn:
    """One column of `kubectl get`."""

    name: str
    path: str
    description: str
    type: str = "string"
    wide: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the entry of additionalPrinterColumns."""
        column: dict[str, Any] = {
            "name": self.name,
            "type": self.type,
            "jsonPath": self.path,
            "description": self.description,
        }
        return column | ({"priority": 1} if self.wide else {})


AGE = PrinterColumn("Age", ".metadata.creationTimestamp", "Time since the object was created.", "date")


@dataclass(frozen=True)
class CrdKind:
    """One kind of the API group with its names and columns in kubectl."""

    model: type[KubernetesObject]
    plural: str
    short_name: str
    columns: tuple[PrinterColumn, ...]
    namespaced: bool = True
    categories: tuple[str, ...] = ("rl",)
    """Categories in kubectl. A category must not have the name of a kind, or `kubectl get rlrun NAME` would list the
    category.
    """
    selectable: tuple[str, ...] = ()
    is_written_often: bool = False
    """True if an admission policy contains the rules, and the status has no schema. The policy ignores status writes.
    Otherwise the API server checks the rules and schema of the whole object on every write.
    """

    @property
    def name(self) -> str:
        """Name of the kind, such as `RLRun`."""
        return self.model.__name__

    @property
    def crd_name(self) -> str:
        """Name of the CustomResourceDefinition, such as `rlruns.rlrun.dev`."""
        return f"{self.plural}.{GROUP}"


ARTIFACT_COLUMNS = (
    PrinterColumn("Run", ".spec.runName", "Name of the run that created the artifact."),
    PrinterColumn("Step", ".spec.step", "Number of optimizer steps that the artifact includes.", "integer"),
    PrinterColumn("Phase", ".status.phase", "Phase of the artifact."),
    PrinterColumn("Reward", ".status.reward", "Mean reward of the artifact's step.", "number"),
    PrinterColumn("Size", ".status.sizeBytes", "Size of all files in bytes.", "integer"),
)
LAST_ARTIFACT_COLUMNS = (
    AGE,
    PrinterColumn("URI", ".spec.uri", "URI of the artifact's folder in S3."),
    PrinterColumn("Model", ".spec.model", "Id of the base model.", wide=True),
    PrinterColumn("Shared-With", ".spec.sharedWith", "Namespaces that may use the artifact.", wide=True),
)

KINDS = (
    CrdKind(
        RLRun,
        "rlruns",
        "rlr",
        (
            PrinterColumn("Phase", ".status.phase", "Phase of the run."),
            PrinterColumn("Step", ".status.progress.step", "Number of completed optimizer steps.", "integer"),
            PrinterColumn("Max", ".spec.maxSteps", "Requested number of optimizer steps.", "integer"),
            PrinterColumn("Reward", ".status.progress.reward", "Mean reward of the newest batch.", "number"),
            PrinterColumn("ETA", ".status.progress.etaSeconds", "Estimated seconds until the last step.", "number"),
            PrinterColumn(
                "Restarts",
                ".status.restarts",
                "Number of container restarts, pod replacements and restarts of the run.",
                "integer",
            ),
            PrinterColumn("Model", ".spec.model", "Id of the model that is trained."),
            PrinterColumn("Display", ".spec.name", "Display name of the run."),
            AGE,
            PrinterColumn("Reason", ".status.reason", "Reason for the phase."),
            PrinterColumn(
                "Last-Step", ".status.progress.lastStepTime", "Time since the newest step.", "date", wide=True
            ),
            PrinterColumn("Environment", ".spec.env[0].id", "Id of the first environment of the run.", wide=True),
            PrinterColumn("Driver", ".spec.driver", "Program that runs the training loop.", wide=True),
            PrinterColumn("Attempt", ".status.attempt", "Number of the current attempt.", "integer", wide=True),
            PrinterColumn(
                "Policy",
                ".status.progress.policyVersion",
                "Version of the newest policy that rollouts are sampled from.",
                "integer",
                wide=True,
            ),
            PrinterColumn("Checkpoint", ".status.lastCheckpoint", "Newest Ready checkpoint.", wide=True),
            PrinterColumn(
                "Ahead",
                ".status.queue.runsAhead",
                "Number of runs ahead of this one in the queue.",
                "integer",
                wide=True,
            ),
            PrinterColumn("Pool", ".status.pool.name", "Shared pool of the run.", wide=True),
        ),
        categories=("rl", "all"),
        selectable=(".spec.model", ".spec.checkpointId", ".status.phase"),
        is_written_often=True,
    ),
    CrdKind(
        RLCheckpoint,
        "rlcheckpoints",
        "rlc",
        (*ARTIFACT_COLUMNS, *LAST_ARTIFACT_COLUMNS),
        selectable=(".spec.runName", ".spec.model", ".status.phase"),
    ),
    CrdKind(
        RLAdapter,
        "rladapters",
        "rla",
        (
            *ARTIFACT_COLUMNS,
            PrinterColumn("Deployment", ".status.deploymentState", "State of the adapter's deployment."),
            *LAST_ARTIFACT_COLUMNS,
            PrinterColumn("Served-As", ".status.deploymentModel", "Model name to use in requests.", wide=True),
        ),
        selectable=(".spec.runName", ".spec.model", ".status.phase"),
    ),
    CrdKind(
        RLModel,
        "rlmodels",
        "rlm",
        (
            PrinterColumn("Model", ".spec.id", "Id that runs use in spec.model."),
            PrinterColumn("Seq-Len", ".spec.seqLen", "Maximum sequence length in tokens.", "integer"),
            PrinterColumn("Rank", ".spec.lora.rank", "Rank of the adapters.", "integer"),
            PrinterColumn("Trainers", ".spec.trainer.nodes", "Number of trainer pods per run.", "integer"),
            PrinterColumn("Trainer-GPUs", ".spec.trainer.gpus", "Number of GPUs per trainer pod.", "integer"),
            PrinterColumn("Engines", ".spec.inference.replicas", "Number of inference engines per run.", "integer"),
            PrinterColumn("Engine-GPUs", ".spec.inference.gpus", "Number of GPUs per inference engine.", "integer"),
            PrinterColumn("Runs", ".status.runs", "Number of runs that use the model.", "integer"),
            PrinterColumn("Source", ".spec.source", "Source of the weights."),
            AGE,
            *(
                PrinterColumn(
                    name, f'.status.conditions[?(@.type=="{kind}")].reason', f"Reason of condition {kind}.", wide=True
                )
                for name, kind in (("Valid", "Validated"), ("Weights", "WeightsCached"), ("Warnings", "Warnings"))
            ),
        ),
        namespaced=False,
        selectable=(".spec.id",),
    ),
)


def complete_schema(kind: CrdKind) -> dict[str, Any]:
    """Return the schema of a kind with all fields and rules, as shown in the reference pages."""
    schema = _schema(kind, structural(_part(kind, "spec")), structural(_part(kind, "status"), defaults=False))
    if validations := cel_rules(kind.model):
        schema[VALIDATIONS] = validations
        # A rule's fieldPath must exist in the schema.
        schema["properties"]["metadata"]["properties"] = {"name": {"type": "string", "maxLength": 253}}
    return schema


def stored_schema(kind: CrdKind) -> dict[str, Any]:
    """Return the schema for the API server. Items of lists have no defaults.

    Tools that compare an object with its file, such as Argo CD, replace complete lists. They would report a default
    inside a list as a difference after every synchronization.
    """
    if not kind.is_written_often:
        return _without_item_defaults(complete_schema(kind))
    status = structural(_part(kind, "status"), defaults=False)["properties"]
    selected = {path.removeprefix(".status.") for path in kind.selectable if path.startswith(".status.")}
    # Atomic, so that managedFields lists no fields below the status, which has only one writer.
    shape = {"type": "object", MAP_TYPE: "atomic", PRESERVE: True}
    schema = _schema(
        kind,
        structural(_part(kind, "spec"), rules=False),
        {**shape, "properties": {name: field for name, field in status.items() if name in selected}},
    )
    schema["properties"]["status"]["description"] += (
        f" The CRD has no schema for the status, so that status writes are cheap. Fields: {', '.join(status)}."
    )
    return _without_item_defaults(schema)


def _without_item_defaults(schema: dict[str, Any], *, in_list: bool = False) -> dict[str, Any]:
    result = {key: value for key, value in schema.items() if not (in_list and key == "default")}
    for key, inside in (("items", True), ("additionalProperties", in_list)):
        if isinstance(below := schema.get(key), dict):
            result[key] = _without_item_defaults(below, in_list=inside)
    if properties := schema.get("properties"):
        result["properties"] = {
            name: _without_item_defaults(below, in_list=in_list) for name, below in properties.items()
        }
    return result


def _schema(kind: CrdKind, spec: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
    fields = kind.model.model_fields
    return {
        "type": "object",
        "description": kind.model.__doc__,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"{GROUP}/{VERSION}."},
            "kind": {"type": "string", "description": f"{kind.name}."},
            # Without description, because the API server accepts only limits of the name here.
            "metadata": {"type": "object"},
            "spec": {**spec, "description": fields["spec"].description},
            "status": {**status, "description": fields["status"].description},
        },
    }


def crd(kind: CrdKind) -> dict[str, Any]:
    """Return the CustomResourceDefinition of one kind."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.crd_name},
        "spec": {
            "conversion": {"strategy": "None"},
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
                    "schema": {"openAPIV3Schema": stored_schema(kind)},
                }
            ],
        },
    }


def render() -> dict[str, str]:
    """Return the YAML of every CustomResourceDefinition, admission policy and policy binding by file name."""
    files = {f"{kind.crd_name}.yaml": crd(kind) for kind in KINDS}
    for kind in KINDS:
        if kind.is_written_often:
            policy, binding = policy_objects(kind.model, kind.plural)
            files |= {f"{kind.crd_name}-policy.yaml": policy, f"{kind.crd_name}-policy-binding.yaml": binding}
    return {
        name: HEADER + yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
        for name, content in files.items()
    }


class _Dumper(yaml.SafeDumper):
    """YAML writer without aliases and with block style for multi-line text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def _part(kind: CrdKind, field: str) -> type[BaseModel]:
    annotation = kind.model.model_fields[field].annotation
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        raise TypeError(f"{kind.name}.{field} must be a model")
    return annotation


def main() -> int:
    """Write or check the files. Returns 1 if a check finds a difference."""
    parser = argparse.ArgumentParser(prog="python -m rlrun.codegen.crd", description="Generate the CRDs.")
    parser.add_argument("--check", action="store_true", help="only compare, and exit with 1 if a file differs")
    parser.add_argument("--output", type=Path, default=FOLDER, help=f"folder of the files (default: {FOLDER})")
    options = parser.parse_args()
    return update(options.output, render(), check=options.check, command="python -m rlrun.codegen.crd")


if __name__ == "__main__":
    sys.exit(main())
