"""Tests of the laboratory: what measures, breaks and shows the product."""

from tests.support.level_fixtures import (
    pytest_collection_finish,
    pytest_collection_modifyitems,
    pytest_ignore_collect,
    s3_server,
    store,
)

__all__ = [
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_ignore_collect",
    "s3_server",
    "store",
]
