"""boto3 sessions that share the descriptions of AWS services, which take a tenth of a second to load."""

import functools
import os
from collections.abc import Mapping
from typing import Any

import boto3
import botocore.session
from botocore.config import Config
from botocore.configprovider import BOTOCORE_DEFAUT_SESSION_VARIABLES
from botocore.loaders import Loader
from typing_extensions import override

from rlrun.api.base.addressing_style import AddressingStyle
from rlrun.api.base.proxy_rules import ProxyRules
from rlrun.api.base.s3_connection import S3Connection


def new_session(*, use_environment: bool = True) -> boto3.session.Session:
    """Return a session that shares no credentials with other sessions. If `use_environment` is false, it reads only the
    variable AWS_CA_BUNDLE, and no configuration files of AWS tools.
    """
    session = botocore.session.Session(None if use_environment else _without_environment())
    session.register_component("data_loader", _loader())
    return boto3.session.Session(botocore_session=session)


def s3_client(
    session: boto3.session.Session,
    connection: S3Connection,
    *,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    **config: Any,
) -> Any:
    """Return a botocore client for this connection, with the same certificates and proxies as the platform's other
    clients.

    `config` is passed on to botocore's Config.
    """
    # AWS has a DNS name for each bucket, other servers rarely.
    is_automatic = connection.addressing_style == AddressingStyle.path and not connection.endpoint
    style = "auto" if is_automatic else str(connection.addressing_style)
    return session.client(
        "s3",
        endpoint_url=connection.endpoint or None,
        region_name=connection.region,
        aws_access_key_id=access_key_id,
        aws_secret_access_key=secret_access_key,
        aws_session_token=session_token,
        verify=authorities(),
        config=Config(
            s3={"addressing_style": style},
            use_dualstack_endpoint=(connection.dual_stack and not connection.endpoint) or None,
            proxies=proxies_of(connection),
            **config,
        ),
    )


def proxies_of(connection: S3Connection, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the proxies for requests to S3 by scheme, in the form that botocore's `Config` expects. Empty if no proxy
    is used.

    botocore itself does not support networks in NO_PROXY.
    """
    proxy = ProxyRules.of_environment(environment).proxy_of(connection.url)
    return dict.fromkeys(("http", "https"), proxy) if proxy else {}


def authorities(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the `verify` argument of a botocore client: the path of the file with the certificate authorities that the
    platform's other clients use.

    None makes botocore use AWS_CA_BUNDLE or its own authorities.
    """
    return None if environment.get("AWS_CA_BUNDLE") else environment.get("SSL_CERT_FILE") or None


class _SharedLoader(Loader):  # type: ignore[misc]
    """Loader of service descriptions that all sessions of the process share."""

    @property
    @override
    def search_paths(self) -> list[str]:
        # boto3 adds its own folder for each session.
        return list(self._search_paths)


@functools.cache
def _loader() -> Loader:
    return _SharedLoader()


def _without_environment() -> dict[str, tuple[object, ...]]:
    settings = {
        name: (in_file, None, os.devnull if name == "config_file" else default, convert)
        for name, (in_file, _, default, convert) in BOTOCORE_DEFAUT_SESSION_VARIABLES.items()
        if name != "ca_bundle"
    }
    return {**settings, "profile": (None, None, None, None)}
