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
