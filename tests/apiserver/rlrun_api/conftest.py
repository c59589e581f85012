"""The API server as the tests of verdicts see it."""

import pytest
from kubernetes import client

from tests.apiserver.rlrun_api.server import Server


@pytest.fixture
def server(api: client.ApiClient, namespace: str) -> Server:
    return Server(api, namespace)
