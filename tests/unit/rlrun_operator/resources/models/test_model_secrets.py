"""Secrets that an RLModel names: what is missing, what is reserved, and that values are not kept."""

import pytest
from rlrun.api.model import RLModelSpec, WeightsCache
from rlrun.protocol.problem import Problem
from rlrun_operator.resources.access.observed_secret import ObservedSecret
from rlrun_operator.resources.models.model_secrets import secret_names, secrets_problem
from rlrun_operator.resources.models.model_variables import pool_variables, run_variables

from tests.support.built_children import HUB, Obj
from tests.support.cluster_objects import hub_secret
from tests.support.expectations import present
from tests.support.operator_world import SETTINGS
from tests.unit.rlrun_operator.resources.models.test_model_variables import from_secret

OF_OPERATOR = {"app.kubernetes.io/managed-by": "rlrun-operator"}


def spec(*trainer: Obj, inference: tuple[Obj, ...] = ()) -> RLModelSpec:
    return RLModelSpec.model_validate(
        {
            "id": "a/b",
            "source": HUB,
            "trainer": {"env": list(trainer)},
            "inference": {"env": list(inference)},
        }
    )


def problem(model: RLModelSpec, *secrets: Obj, namespace: str = "team") -> Problem | None:
    return secrets_problem(
        model,
        run_variables(model),
        ObservedSecret.by_name(secrets),
        SETTINGS,
        namespace=namespace,
        token_secret="reverse-rlrun-token",
    )


def test_a_secret_with_its_key_is_no_problem() -> None:
    assert problem(spec(from_secret("HF_TOKEN")), hub_secret()) is None


@pytest.mark.parametrize(
    ("secrets", "words"),
    [
        ((), "does not exist in namespace team. Create it with `kubectl create secret generic hub -n team "),
        ((hub_secret(key="other"),), "lacks this key in namespace team. Add the key"),
    ],
    ids=["no Secret", "no key"],
)
def test_a_missing_secret_or_key_is_reported_with_variable_secret_and_key(secrets: tuple[Obj, ...], words: str) -> None:
    found = present(problem(spec(from_secret("HF_TOKEN")), *secrets))
    assert found.reason == "SecretsMissing"
    assert "RLModel a/b takes HF_TOKEN (`spec.trainer.env`) from key token of Secret hub, which " in found.message
    assert words in found.message
    assert problem(spec(from_secret("HF_TOKEN", optional=True)), *secrets) is None


@pytest.mark.parametrize(
    ("name", "namespace", "secrets", "why"),
    [
        ("s3", "rlrun-system", (), "it contains the platform's S3 credentials"),
        ("reverse-rlrun-token", "team", (), "it belongs to the operator"),
        ("next-s3", "team", (), "names like *-s3 are reserved"),
        ("hub", "team", (hub_secret(labels=OF_OPERATOR),), "it belongs to the operator"),
    ],
)
@pytest.mark.parametrize("optional", [False, True])
def test_secrets_of_the_platform_are_refused_whether_they_exist_or_not(
    name: str, namespace: str, secrets: tuple[Obj, ...], why: str, optional: bool
) -> None:
    model = spec(from_secret("OTHER", "absent"), from_secret("HF_TOKEN", name, optional=optional))
    found = present(problem(model, *secrets, namespace=namespace))
    assert found.reason == "SecretReserved"
    assert f"Secret {name}" in found.message
    assert why in found.message


def test_a_pool_needs_the_secrets_of_its_engines_only() -> None:
    model = spec(from_secret("HF_TOKEN", "of-trainer"), inference=(from_secret("HF_TOKEN", "of-engine"),))
    assert secret_names(model, run_variables(model)) == {"of-engine", "of-trainer"}
    assert secret_names(model, pool_variables(model)) == {"of-engine"}


def test_the_download_of_a_pool_with_a_cache_needs_the_hubs_secrets_of_the_trainer_also() -> None:
    trainer = (from_secret("HF_TOKEN", "of-trainer"), from_secret("LICENSE", "of-training"))
    model = spec(*trainer, inference=(from_secret("HF_TOKEN", "of-engine"),))
    cached = model.model_copy(update={"cache": WeightsCache(size="20Gi")})
    assert secret_names(cached, pool_variables(cached)) == {"of-engine", "of-trainer"}


def test_an_observed_secret_has_no_values() -> None:
    assert "hf_secret" not in repr(ObservedSecret.by_name([hub_secret("hf_secret"), None]))
