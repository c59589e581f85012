from pathlib import Path

import pytest
from rlrun_operator.config.settings import SettingsError, load_settings, parse_settings

MINIMAL = "s3: {bucket: rlrun, credentialsSecret: {namespace: a, name: b}}"


def test_minimal_settings_have_all_defaults() -> None:
    found = parse_settings(MINIMAL)
    assert found.poll_seconds == 2
    assert set(found.compute_sizes) == {"S", "M", "L"}
    assert found.images.inference.reference == "vllm/vllm-openai:latest"


def test_one_size_can_be_changed_alone() -> None:
    found = parse_settings(MINIMAL + "\ncomputeSizes: {S: {cpu: 100m, memory: 1Gi, workers: 1}}")
    assert {str(k): v.cpu for k, v in found.compute_sizes.items()} == {"S": "100m", "M": "4", "L": "8"}
    assert [shape.ephemeral_storage for shape in found.compute_sizes.values()] == ["10Gi", "20Gi", "50Gi"]


def test_storage_is_limited_by_default_and_empty_values_remove_limits() -> None:
    found = parse_settings(MINIMAL)
    assert [shape.ephemeral_storage for shape in found.compute_sizes.values()] == ["10Gi", "20Gi", "50Gi"]
    assert found.ephemeral_storage.model_dump() == {"request": "64Mi", "orchestrator": "20Gi", "model": "2Ti"}
    empty = '\nephemeralStorage: {request: "", orchestrator: "", model: null}'
    empty += '\ncomputeSizes: {S: {cpu: 1, memory: 1Gi, workers: 1, ephemeralStorage: ""}}'
    none = parse_settings(MINIMAL + empty)
    assert [shape.ephemeral_storage for shape in none.compute_sizes.values()] == [None, "20Gi", "50Gi"]
    assert none.ephemeral_storage.model_dump() == {"request": None, "orchestrator": None, "model": None}


def test_digest_is_joined_with_an_at() -> None:
    found = parse_settings(MINIMAL + "\nimages: {trainer: {repository: r, tag: 'sha256:ab'}}")
    assert found.images.trainer.reference == "r@sha256:ab"


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("{}", ["s3"]),
        ("s3: {bucket: rlrun}", ["s3.credentialsSecret"]),
        (MINIMAL + "\npollSeconds: 0\nworkers: many", ["pollSeconds", "workers"]),
        (MINIMAL + "\nimagez: {}", ["imagez"]),
        (MINIMAL + "\ncomputeSizes: {M: {cpu: lots, memory: 1Gi, workers: 1}}", ["computeSizes.M.cpu"]),
        (MINIMAL + "\nephemeralStorage: {model: lots}", ["ephemeralStorage.model"]),
        (MINIMAL + "\ndns: {namespaceLabels: {}}", ["dns.namespaceLabels"]),
        (MINIMAL + "\ndns: {cidrs: [169.254.20.10]}", ["dns.cidrs.0", "prefix length"]),
        (MINIMAL + "\ndns: {cidrs: [10.0.0.1/8]}", ["dns.cidrs.0", "host bits"]),
        ("just text", ["mapping of settings"]),
        (MINIMAL + "\nprivateAddresses: ['http://teacher']", ["privateAddresses", "'http://teacher'"]),
        ("a: [", ["not valid YAML"]),
    ],
)
def test_invalid_settings_name_their_fields(text: str, fields: list[str]) -> None:
    with pytest.raises(SettingsError) as error:
        parse_settings(text)
    for field in fields:
        assert field in str(error.value)


def test_missing_file_names_the_variable(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="RLRUN_SETTINGS"):
        load_settings({"RLRUN_SETTINGS": str(tmp_path / "none.yaml")})
