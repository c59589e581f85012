"""Secrets of the platform that runs and RLModels must not name, whether they exist or not."""

from fnmatch import fnmatchcase

from rlrun_operator.config.settings import OperatorSettings


def why_reserved(namespace: str, name: str, settings: OperatorSettings, *, operator_owned: bool) -> str | None:
    """Return the reason why pods of users must not read the Secret, or None.

    `operator_owned` is true for a Secret that the operator has made or will make.
    """
    platform = settings.s3.credentials_secret
    if (namespace, name) == (platform.namespace, platform.name):
        return "it has the platform's S3 credentials"
    if operator_owned:
        return "it belongs to the operator"
    pattern = next((p for p in settings.reserved_secret_names if fnmatchcase(name, p)), None)
    return f"names like {pattern} are reserved for the platform" if pattern else None
