"""Certificate authorities that the pods of runs and serving pools trust in addition to the public ones."""

from rlrun.service.trust_bundle import additional

from rlrun_operator.config.settings import OperatorSettings, SettingsError

MAX_BYTES = 96 * 1024
"""Maximum size in bytes of the additional certificates. They are passed in an environment variable, which Linux limits
to 128 KiB.
"""


def with_ca_bundle(settings: OperatorSettings) -> OperatorSettings:
    """Return the settings with the certificates read from `ca_bundle_file`. Raises SettingsError."""
    path = settings.ca_bundle_file
    if path is None:
        return settings
    try:
        bundle = additional(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"caBundle: the certificates in {path} cannot be used: {error}. Correct the ConfigMap or Secret that the "
            "chart's value `caBundle` names."
        ) from error
    if len(bundle) > MAX_BYTES:
        raise SettingsError(
            f"caBundle: {path} contains {len(bundle) // 1024} KiB of certificates in addition to the public ones, but "
            f"the maximum is {MAX_BYTES // 1024} KiB: remove certificates of authorities that are not your own."
        )
    return settings.model_copy(update={"ca_bundle": bundle})
