"""Checks the Secrets that an RLModel's variables refer to, before the first pod is created.

Without the check, pods would wait in CreateContainerConfigError.
"""

from collections.abc import Mapping

from rlrun.api.model import RLModelSpec
from rlrun.constants import Reason
from rlrun.protocol.problem import Problem

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.access.observed_secret import ObservedSecret
from rlrun_operator.resources.access.reserved_secrets import why_reserved
from rlrun_operator.resources.models.model_variables import SecretVariable, Variables, secret_variables


def secret_names(model: RLModelSpec, variables: Variables) -> set[str]:
    """Return the names of the Secrets that the variables refer to."""
    return {v.ref.name for v in secret_variables(model.source, variables)}


def secrets_problem(
    model: RLModelSpec,
    variables: Variables,
    secrets: Mapping[str, ObservedSecret],
    settings: OperatorSettings,
    *,
    namespace: str,
    token_secret: str,
) -> Problem | None:
    """Return a problem if a variable refers to a reserved Secret, or to a Secret or key that does not exist.

    `namespace` is the namespace of the pods, and `token_secret` the Secret that the operator creates for them.
    """
    used = secret_variables(model.source, variables)
    for variable in used:
        name = variable.ref.name
        operator_owned = name == token_secret or (name in secrets and secrets[name].operator_owned)
        why = why_reserved(namespace, name, settings, operator_owned=operator_owned)
        if why:
            return Problem(
                reason=Reason.SECRET_RESERVED,
                message=(
                    f"{_what(model, variable)}, which RLModels must not use: {why}. The platform team must use a "
                    f"different Secret in the RLModel."
                ),
            )
    for variable in used:
        ref, secret = variable.ref, secrets.get(variable.ref.name)
        if ref.optional or (secret is not None and ref.key in secret.keys):
            continue
        if secret is not None:
            mend = f"lacks this key in namespace {namespace}. Add the key to the Secret"
        else:
            mend = (
                f"does not exist in namespace {namespace}. Create it with `kubectl create secret generic {ref.name} "
                f"-n {namespace} --from-literal={ref.key}=value`"
            )
        return Problem(
            reason=Reason.SECRETS_MISSING,
            message=f"{_what(model, variable)}, which {mend}, or ask the platform team to do so.",
        )
    return None


def _what(model: RLModelSpec, variable: SecretVariable) -> str:
    ref = variable.ref
    return f"RLModel {model.id} takes {variable.name} (`spec.{variable.field}`) from key {ref.key} of Secret {ref.name}"
