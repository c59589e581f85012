"""Secrets of the platform that runs and RLModels must not name, whether they exist or not."""

from fnmatch import fnmatchcase

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.access.observed_secret import ObservedSecret
from rlrun_operator.resources.access.run_tokens import key_secret_name
from rlrun_operator.resources.access.storage_access import grant_key_secret_name

OPAQUE = "Opaque"


def why_reserved(namespace: str, name: str, settings: OperatorSettings, *, operator_owned: bool) -> str | None:
    """Return the reason why pods of users must not read the Secret, or None.

    `operator_owned` is true for a Secret that the operator has made or will make.
    """
    content = platform_secrets(settings).get((namespace, name))
    if content is not None:
        return f"it has {content}"
    if operator_owned:
        return "it belongs to the operator"
    pattern = next((p for p in settings.reserved_secret_names if fnmatchcase(name, p)), None)
    return f"names like {pattern} are reserved for the platform" if pattern else None


def why_unusable(name: str, secret: ObservedSecret, settings: OperatorSettings) -> str | None:
    """Return the reason why environments must not get the keys of a Secret that exists, or None.

    Tokens of ServiceAccounts and passwords of registries have types of their own.
    """
    if secret.type != OPAQUE:
        return f"its type is {secret.type}, and only Secrets of type {OPAQUE} are for environments"
    key, has_value, value = settings.secret_label.partition("=")
    found = secret.labels.get(key)
    if key and (found is None or (has_value and found != value)):
        return (
            f"the platform requires the label {settings.secret_label} of such a Secret. Who manages it sets the label "
            f"with `kubectl label secret {name} {key}={value}`"
        )
    return None


def platform_secrets(settings: OperatorSettings) -> dict[tuple[str, str], str]:
    """Return the content of the platform's own Secrets, by namespace and name."""
    s3, own = settings.s3.credentials_secret, settings.lease_namespace
    reserved = {
        (own, key_secret_name(settings.lease_name)): "the key of the tokens of runs",
        (own, grant_key_secret_name(settings.lease_name)): "the key that signs permissions for S3",
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
        reserved[key.namespace, key.name] = "the key that signs permissions for the egress proxy"
    return reserved
