"""Secrets of the platform that runs and RLModels must not refer to, even if they do not exist."""

from fnmatch import fnmatchcase

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.access.observed_secret import ObservedSecret
from rlrun_operator.resources.access.run_tokens import key_secret_name
from rlrun_operator.resources.access.storage_access import grant_key_secret_name

OPAQUE = "Opaque"


def why_reserved(namespace: str, name: str, settings: OperatorSettings, *, operator_owned: bool) -> str | None:
    """Return why users' pods must not read the Secret, or None if they may. `operator_owned` is true for Secrets that
    the operator creates.
    """
    content = platform_secrets(settings).get((namespace, name))
    if content is not None:
        return f"it contains {content}"
    if operator_owned:
        return "it belongs to the operator"
    pattern = next((p for p in settings.reserved_secret_names if fnmatchcase(name, p)), None)
    return f"names like {pattern} are reserved for the platform" if pattern else None


def why_unusable(name: str, secret: ObservedSecret, settings: OperatorSettings) -> str | None:
    """Return why environments must not get an existing Secret's keys, or None if they may.

    ServiceAccount tokens and registry passwords are excluded by their Secret types.
    """
    if secret.type != OPAQUE:
        return f"its type is {secret.type}, and environments may only use Secrets of type {OPAQUE}"
    key, has_value, value = settings.secret_label.partition("=")
    found = secret.labels.get(key)
    if key and (found is None or (has_value and found != value)):
        return (
            f"the platform requires the label {settings.secret_label} on Secrets for environments. The owner of the "
            f"Secret can set it with `kubectl label secret {name} {key}={value}`"
        )
    return None


def platform_secrets(settings: OperatorSettings) -> dict[tuple[str, str], str]:
    """Return a description of each of the platform's own Secrets, by namespace and name."""
    s3, own = settings.s3.credentials_secret, settings.lease_namespace
    reserved = {
        (own, key_secret_name(settings.lease_name)): "the key for run tokens",
        (own, grant_key_secret_name(settings.lease_name)): "the signing key for S3 grants",
    }
    if s3 is not None:
        reserved[s3.namespace, s3.name] = "the platform's S3 credentials"
    if settings.storage_server_certificate is not None:
        certificate = settings.storage_server_certificate.secret
        reserved[certificate.namespace, certificate.name] = "the key of rlrun-server's certificate"
    if settings.api_keys is not None:
        keys = settings.api_keys.secret
        reserved[keys.namespace, keys.name] = "the digests of API keys"
    if settings.egress is not None:
        key = settings.egress.key_secret
        reserved[key.namespace, key.name] = "the signing key for egress proxy grants"
    return reserved
