"""The admission policy has every rule of its kind, and says what the schema says."""

import re
from collections.abc import Iterator
from typing import ClassVar, Literal

import pytest
from rlrun.api.base.kubernetes_types import KubernetesObject
from rlrun.api.base.rules import FROZEN_MESSAGE, Rule, Spec
from rlrun.api.run import RLRun
from rlrun.codegen.admission_policy import policy_objects
from rlrun.codegen.crd import KINDS, complete_schema
from rlrun.codegen.openapi import Json
from rlrun.codegen.reference_pages import rules


def _expressions(model: type[KubernetesObject] = RLRun) -> dict[str, str]:
    policy, _ = policy_objects(model, "rlruns")
    return {variable["name"]: variable["expression"] for variable in policy["spec"]["variables"]}


def _all_rules() -> Iterator[tuple[str, str]]:
    schema = complete_schema(next(kind for kind in KINDS if kind.model is RLRun))
    yield from rules({"x-kubernetes-validations": schema["x-kubernetes-validations"]}, "")
    yield from rules(schema["properties"]["spec"], "spec")


def test_every_rule_of_the_reference_is_in_the_policy() -> None:
    policy, _ = policy_objects(RLRun, "rlruns")
    text = "\n".join([*_expressions().values(), *(v["expression"] for v in policy["spec"]["validations"])])
    found = list(_all_rules())
    assert len(found) > 50
    for path, message in found:
        if message.endswith(FROZEN_MESSAGE):
            assert f'"{path.rpartition(".")[2]}"' in text or f'"{path}: {message}"' in text, path
            continue
        assert message.replace("\\", "\\\\") in text, path


def test_all_lists_of_violations_count() -> None:
    expressions = _expressions()
    assert re.findall(r"variables\.(\w+)", expressions.pop("violations")) == list(expressions)


def test_writes_of_the_status_and_of_metadata_evaluate_no_rule() -> None:
    policy, binding = policy_objects(RLRun, "rlruns")
    (resources,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert resources["resources"] == ["rlruns"], "no subresource"
    (condition,) = policy["spec"]["matchConditions"]
    assert condition["expression"].startswith("oldObject == null || object.spec != oldObject.spec || object.metadata.?")
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}


class Inner(Spec):
    spec_rules: ClassVar[tuple[Rule, ...]] = (Rule("low", "self.low < self.high", "low is low", lambda s: True),)
    low: int = 0
    high: int | None = None


class Item(Spec):
    inner: Inner | None = None


class Outer(Spec):
    part: Inner | None = None
    parts: list[Inner] = []


class Kind(KubernetesObject):
    kind: Literal["Kind"] = "Kind"
    spec: Outer


def test_rules_of_an_absent_section_are_not_evaluated() -> None:
    expression = _expressions(Kind)["specPart"]
    assert expression.startswith("has(object.spec.part) ?")
    assert "object.spec.?part.?high != oldObject.spec.?part.?high" in expression
    assert "!(object.spec.part.low < object.spec.part.high)" in expression


def test_rules_of_items_name_the_item() -> None:
    expression = _expressions(Kind)["specParts"]
    assert "object.spec.parts.map(self, !(self.low < self.high)" in expression
    assert '"spec.parts[" + string(object.spec.parts.indexOf(self)) + \'].low: \' + "low is low"' in expression


def test_rules_below_items_are_refused_rather_than_left_out() -> None:
    class Deep(Spec):
        items: list[Item] = []

    class DeepKind(KubernetesObject):
        kind: Literal["DeepKind"] = "DeepKind"
        spec: Deep

    with pytest.raises(TypeError, match="specItemsInner"):
        policy_objects(DeepKind, "deepkinds")


def test_a_policy_is_no_longer_than_the_api_server_accepts() -> None:
    policy: Json = policy_objects(RLRun, "rlruns")[0]
    assert len(policy["spec"]["validations"][1]["message"]) < 500
