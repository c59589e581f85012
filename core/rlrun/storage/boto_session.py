"""Sessions of boto3 whose clients share the descriptions of AWS services, which take a tenth of a second to read."""

import functools
import os
from collections.abc import Mapping

import boto3
import botocore.session
from botocore.configprovider import BOTOCORE_DEFAUT_SESSION_VARIABLES
from botocore.loaders import Loader
from typing_extensions import override

from rlrun.api.base.proxy_rules import ProxyRules


def new_session(*, use_environment: bool = True) -> boto3.session.Session:
    """Return a session with credentials of its own.

    Without `use_environment` it reads no variable but AWS_CA_BUNDLE, and no file of AWS tools.
    """
    session = botocore.session.Session(None if use_environment else _without_environment())
    session.register_component("data_loader", _loader())
    return boto3.session.Session(botocore_session=session)


def proxies_of(endpoint_url: str | None, region: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the proxies for requests to S3, for a `Config`: botocore itself knows no networks in NO_PROXY.

    Empty: none, and botocore reads no variables for it. `endpoint_url`: None or empty for AWS.
    """
    url = endpoint_url or f"https://s3.{region}.amazonaws.com"
    proxy = ProxyRules.of_environment(environment).proxy_of(url)
    return dict.fromkeys(("http", "https"), proxy) if proxy else {}


def authorities(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the file with certificate authorities that other clients use, for `verify` of a client of botocore.

    None: AWS_CA_BUNDLE, which botocore reads, or its own authorities.
    """
    return None if environment.get("AWS_CA_BUNDLE") else environment.get("SSL_CERT_FILE") or None


class _SharedLoader(Loader):  # type: ignore[misc]
    """Descriptions of services for all sessions of the process."""

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
