"""Sessions of boto3 whose clients share the descriptions of AWS services, which take a tenth of a second to read."""

import functools
import os

import boto3
import botocore.session
from botocore.configprovider import BOTOCORE_DEFAUT_SESSION_VARIABLES
from botocore.loaders import Loader
from typing_extensions import override


def new_session(*, use_environment: bool = True) -> boto3.session.Session:
    """Return a session with credentials of its own.

    Without `use_environment` it reads no variable but AWS_CA_BUNDLE, and no file of AWS tools.
    """
    session = botocore.session.Session(None if use_environment else _without_environment())
    session.register_component("data_loader", _loader())
    return boto3.session.Session(botocore_session=session)


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
