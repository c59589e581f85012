"""Write the schema of `models[].spec` into values.schema.json: `python charts/rlrun/models_schema.py [--check]`.

It comes from the CRD. Helm knows JSON Schema, not the rules between fields of a CRD: the API server still checks the
objects.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parent
CRD = CHART / "files" / "crds" / "rlmodels.rlrun.dev.yaml"
SCHEMA = CHART / "values.schema.json"
KEPT = {
    "enum", "maxItems", "maxLength", "maxProperties", "maximum", "minItems", "minLength", "minimum", "pattern",
    "required", "type",
}  # fmt: skip
"""Keywords that both schemas have with one meaning."""
SOURCE = (
    r"^(hf://[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*@[0-9a-f]{40}"
    r"|oci://[A-Za-z0-9][A-Za-z0-9.:-]*(/[a-z0-9][a-z0-9._-]*)+@sha256:[0-9a-f]{64}(/[^/\s]+)*"
    r"|(s3|pvc)://[^/\s]+(/[^\s]*)?)$"
)
"""Pattern of `source` that includes the CRD's rules about commits and digests, which are written in CEL."""


def convert(node: dict[str, Any]) -> dict[str, Any]:
    """Return a node of a structural schema as JSON Schema, in which an object has no other properties than its own."""
    made: dict[str, Any] = {key: value for key, value in node.items() if key in KEPT}
    for limit, exclusive in (("maximum", "exclusiveMaximum"), ("minimum", "exclusiveMinimum")):
        if node.get(exclusive):
            made[exclusive] = made.pop(limit)
    if node.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
    if "properties" in node:
        made["properties"] = {name: convert(one) for name, one in node["properties"].items()}
        if not node.get("x-kubernetes-preserve-unknown-fields"):
            made["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            made[key] = convert(node[key])
    return made


def with_models(schema: str, crd: str) -> str:
    """Return the schema of the values with that of the models in it."""
    values = json.loads(schema)
    spec = yaml.safe_load(crd)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    converted = convert(spec)
    converted["properties"]["source"]["pattern"] = SOURCE
    values["properties"]["models"]["items"]["properties"]["spec"] = converted
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    present = SCHEMA.read_text(encoding="utf-8")
    wanted = with_models(present, CRD.read_text(encoding="utf-8"))
    if "--check" in sys.argv[1:]:
        if present != wanted:
            raise SystemExit("values.schema.json has another RLModel: run `python charts/rlrun/models_schema.py`")
    else:
        SCHEMA.write_text(wanted, encoding="utf-8")
