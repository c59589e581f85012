"""Generates a ValidatingAdmissionPolicy with the rules of a kind, for kinds whose status is written often.

The API server evaluates the rules of a CustomResourceDefinition on every write, but those of this policy only on writes
that change the spec or the user annotation. All violations are reported in one message, which `rlrun.kube.errors`
splits. A rule is checked when an object is created and when a field that it reads changes, so a run that was accepted
before a rule existed can still be stopped.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from rlrun.api.base.kubernetes_types import KubernetesObject
from rlrun.api.base.rules import FROZEN_MESSAGE, Spec
from rlrun.codegen.openapi import VALIDATIONS, default_value, frozen_fields, may_be_absent, structural
from rlrun.constants import GROUP, USER_ANNOTATION, VERSION
from rlrun.kube.errors import VIOLATION_SEPARATOR

MAX_SPEC_BYTES = 256 * 1024
"""Maximum size of a spec in bytes. The limit is needed because environment arguments are free-form, and the operator
and rlrun-server read every run.
"""

OPERATIONS = ("CREATE", "UPDATE")

Json = dict[str, Any]


def policy_objects(model: type[KubernetesObject], plural: str) -> tuple[Json, Json]:
    """Return the ValidatingAdmissionPolicy with the rules of a kind, and its binding."""
    name = f"{plural}.{GROUP}"
    sections = dict(_violations(_Section(model)))
    rule = {
        "apiGroups": [GROUP],
        "apiVersions": [VERSION],
        "operations": list(OPERATIONS),
        "resources": [plural],
        "scope": "*",
    }
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "matchPolicy": "Equivalent",
            "namespaceSelector": {},
            "objectSelector": {},
            "resourceRules": [rule],
        },
        "matchConditions": [
            {
                "name": "spec-differs",
                "expression": f"oldObject == null || object.spec != oldObject.spec || {_USER} != {_OLD_USER}",
            }
        ],
        "variables": [
            *({"name": section, "expression": violations} for section, violations in sections.items()),
            {"name": "violations", "expression": " +\n".join(f"variables.{section}" for section in sections)},
        ],
        "validations": [
            _size_rule(),
            _user_rule(),
            {
                "expression": "variables.violations.size() == 0",
                # The API server uses this message if the list has more than 5 KiB.
                "message": f"{model.__name__} violates too many rules for one message: rlrun validate lists them all",
                "messageExpression": f"variables.violations.join({json.dumps(VIOLATION_SEPARATOR)})",
                "reason": "Invalid",
            },
            *_value_rules(_Section(model)),
        ],
    }
    binding = {"policyName": name, "validationActions": ["Deny"]}
    return (
        _object("ValidatingAdmissionPolicy", name, spec),
        _object("ValidatingAdmissionPolicyBinding", name, binding),
    )


def _object(kind: str, name: str, spec: Json) -> Json:
    return {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def _size_rule() -> Json:
    """Return the rule that limits the spec's size. An existing larger spec may grow slightly, so that `stop` and
    `suspend` can be set.
    """
    # `format` converts the whole spec to text, whose size is compared.
    new, old = (f"size(bytes('%s'.format([{name}.spec])))" for name in ("object", "oldObject"))
    return {
        "expression": f"{new} <= {MAX_SPEC_BYTES} ||\n(oldObject != null && {new} <= {old} + 64)",
        "message": f"spec: spec is larger than {MAX_SPEC_BYTES // 1024} KiB: "
        "put large data into the environment's package",
        "reason": "Invalid",
    }


_USER = f"object.metadata.?annotations[?'{USER_ANNOTATION}'].orValue('')"
_OLD_USER = _USER.replace("object", "oldObject", 1)


def _user_rule() -> Json:
    """Return the rule for a run's user annotation. An unchanged annotation is accepted; otherwise the annotation must
    be absent or name the client, or a user whom the client may impersonate.
    """
    may_impersonate = f"authorizer.group('').resource('users').name({_USER}).check('impersonate').allowed()"
    return {
        "expression": f"{_USER} == '' ||\n{_USER} == request.userInfo.username ||\n"
        f"(oldObject != null && {_USER} == {_OLD_USER}) ||\n{may_impersonate}",
        "message": f"metadata.annotations: {USER_ANNOTATION} must be the user who creates the run: remove the "
        "annotation",
        "reason": "Invalid",
    }


@dataclass(frozen=True)
class _Section:
    """Section of the object that may have rules of its own."""

    model: type[Spec]
    path: str = ""
    """Path below the object: `.spec.eval`."""
    optional_path: str = ""
    """Path with CEL's optional selection (`.?`) for sections that may be absent: `.spec.?eval`."""
    guards: tuple[str, ...] = ()
    """Paths of the sections that may be absent, from the object to this section, including it."""

    def below(self, name: str, field: FieldInfo, model: type[Spec]) -> "_Section":
        """Return the section of a field."""
        path, is_optional = f"{self.path}.{name}", may_be_absent(field)
        guards = (*self.guards, path) if is_optional else self.guards
        return _Section(model, path, f"{self.optional_path}.{'?' * is_optional}{name}", guards)

    @property
    def variable(self) -> str:
        """Name of the CEL variable with the section's violations, such as `specEval`."""
        first, *others = self.path.strip(".").split(".")
        return (first or "object") + "".join(name[0].upper() + name[1:] for name in others)

    def differs(self, *names: str) -> str:
        """Return the CEL expression that is true if the object is new or one of these fields has changed."""
        absent = {field.alias or name for name, field in self.model.model_fields.items() if may_be_absent(field)}
        paths = [f"{self.optional_path}.{'?' * (name in absent)}{name}" for name in names] or [self.optional_path]
        return " || ".join(["oldObject == null", *(f"object{path} != oldObject{path}" for path in paths)])

    def violation(self, field: str, message: str) -> str:
        """Return the message about a violation as a CEL literal."""
        return json.dumps(f"{self.path}.{field}: {message}".lstrip("."))

    def if_present(self, violations: list[str]) -> str:
        """Return a CEL expression that concatenates the violations, or is an empty list if the section is absent."""
        found = " +\n".join(violations)
        return f"{' && '.join(f'has(object{path})' for path in self.guards)} ?\n{found} :\n[]" if self.guards else found


def _violations(section: _Section) -> Iterator[tuple[str, str]]:
    """Yield (name of a variable, CEL expression of a list of violations) for a section and those below it."""
    if found := [*_broken_rules(section), *_changed_fields(section)]:
        yield section.variable, section.if_present(found)
    for name, field in section.model.model_fields.items():
        model, is_list = _model_of(field.annotation)
        if model is None:
            continue
        below = section.below(field.alias or name, field, model)
        if not is_list:
            yield from _violations(below)
        elif found := _broken_items(below):
            yield below.variable, below.if_present(found)


def _broken_rules(section: _Section) -> list[str]:
    """Return a list with one CEL expression, the list of violated rules and transitions, or an empty list if the
    section has neither.
    """
    new, old = f"object{section.path}", f"oldObject{section.path}"
    if section.guards and (section.model.spec_transitions or section.model.mutable is not None):
        raise TypeError(f"rules about changes of a section that may be absent are not supported: {section.path}")
    entries = []
    for rule in section.model.spec_rules:
        # A rule about the whole object only reads its name, which never changes.
        when = section.differs(*sorted(rule.reads)) if section.path else "oldObject == null"
        entries.append(f"({when}) && !({_with(rule.cel, new)}) ? {section.violation(rule.field, rule.message)} : ''")
    for transition in section.model.spec_transitions:
        text = section.violation(transition.field, transition.message)
        entries.append(f"oldObject != null && !({_with(transition.cel, new, old)}) ? {text} : ''")
    return ["[\n" + ",\n".join(entries) + "\n].filter(text, text != '')"] if entries else []


def _changed_fields(section: _Section) -> list[str]:
    """Return the violations of immutable fields, as CEL lists."""
    frozen = frozen_fields(section.model)
    if not frozen:
        return []
    # dyn, because the API server's type check does not support selection by a computed name.
    new, old = f"dyn(object{section.path})", f"dyn(oldObject{section.path})"
    with_items = {name: field for name, field in frozen.items() if _has_items(field.annotation)}
    names = json.dumps([name for name in frozen if name not in with_items])
    text = f"{json.dumps(section.path[1:] + '.')} + name + ': ' + name + {json.dumps(' ' + FROZEN_MESSAGE)}"
    found = [f"(oldObject == null ? [] : {names}.map(name, {new}[?name] != {old}[?name], {text}))"]
    for name, field in with_items.items():
        now, before = (_complete(value, name, field) for value in (new, old))
        message = section.violation(name, f"{name} {FROZEN_MESSAGE}")
        found.append(f"(oldObject == null || {now} == {before} ? [] : [{message}])")
    return found


def _has_items(annotation: Any) -> bool:
    """Return whether a field is a list of sections or contains one at any depth."""
    model, is_list = _model_of(annotation)
    return model is not None and (is_list or any(_has_items(f.annotation) for f in model.model_fields.values()))


def _complete(value: str, name: str, field: FieldInfo, depth: int = 0) -> str:
    """Return the CEL expression of a field of `value`, with defaults in list items.

    An object with explicit defaults therefore equals an object that leaves them out.
    """
    model, is_list = _model_of(field.annotation)
    default = default_value(field)
    absent = "" if default is None else f".orValue({json.dumps(default)})"
    if model is None or not (is_list or depth or _has_items(field.annotation)):
        return f"dyn({value}.?{name}{absent})"
    item = f"i{depth}"
    fields = [_complete(item, f.alias or n, f, depth + 1) for n, f in model.model_fields.items()]
    items = f"{value}.?{name}.orValue([])" if is_list else f"(has({value}.{name}) ? [{value}.{name}] : [])"
    return f"dyn({items}.map({item}, [{', '.join(fields)}]))"


def _broken_items(section: _Section) -> list[str]:
    """Return the violations of each rule in all items of a list, as CEL lists."""
    model = section.model
    below = [name for name, _ in _violations(section) if name != section.variable]
    if below or model.spec_transitions or model.mutable is not None:
        raise TypeError(
            f"list items support neither rules on nested fields nor rules on changes: {section.path} {below}"
        )
    items = f"object{section.path}"
    place = f"{json.dumps(section.path[1:] + '[')} + string({items}.indexOf(self)) + ']"
    texts = [(rule, f"{place}.{rule.field}: ' + {json.dumps(rule.message)}") for rule in section.model.spec_rules]
    return [f"({section.differs()} ? {items}.map(self, !({rule.cel}), {text}) : [])" for rule, text in texts]


def _value_rules(section: _Section, items: int = 0) -> Iterator[Json]:
    """Yield the validations of single values, for a section and those below it.

    CEL may report an invalid value as an error, which ends the evaluation, and the API server then returns the text of
    the expression. Each item therefore has its own validation, whose first line is a comment with field and message.
    `items` is the maximum number of items if the section is in a list.
    """
    schema = structural(section.model)["properties"]
    for name, field in section.model.model_fields.items():
        outside = field.alias or name
        model, is_list = _model_of(field.annotation)
        if model is not None:
            below = section.below(outside, field, model)
            yield from _value_rules(below, schema[outside].get("maxItems", 0) if is_list else 0)
            continue
        for rule in schema[outside].get(VALIDATIONS, ()):
            if not items or section.guards:
                raise TypeError(f"rules of a value are only supported in lists of limited size: {section.path}")
            for index in range(items):
                value, path = f"object{section.path}[{index}].{outside}", f"{section.path[1:]}[{index}].{outside}"
                exists = f"object{section.path}.size() > {index} && has({value}) && ({section.differs()})"
                text = f"{path}: {rule['message']}"
                expression = f"// {text}\n!({exists}) || ({_with(rule['rule'], value)})"
                yield {"expression": expression, "message": text, "reason": "Invalid"}


def _with(cel: str, new: str, old: str = "") -> str:
    """Return the rule with `self` and `oldSelf` replaced by the paths `new` and `old`."""
    return re.sub(r"\bself\b", new, re.sub(r"\boldSelf\b", old, cel))


def _model_of(annotation: Any) -> tuple[type[Spec] | None, bool]:
    """Return (section in a field's type, whether the field is a list)."""
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return annotation, False
    for argument in get_args(annotation):
        model, is_list = _model_of(argument)
        if model is not None:
            return model, is_list or get_origin(annotation) is list
    return None, False
