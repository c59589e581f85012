"""Client for rlrun-server's list of environment packages that a user may use."""

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

if TYPE_CHECKING:
    from rlrun.storage.user_signer import Send

PATH = "/rlrun/v1/environments"
PAGE = 500
MAX_PAGES = 100


class PackageSummary(BaseModel):
    """Package in the list. Unknown fields of a newer server are ignored."""

    id: str
    version: str
    versions: int
    pushed: str
    public: bool


class PackagePage(BaseModel):
    """Page of the package list."""

    model_config = ConfigDict(alias_generator=to_camel)

    items: list[PackageSummary]
    next: str | None = None
    is_complete: bool = True
    public: bool | None = None


def list_packages(send: "Send", namespace: str, owner: str | None) -> tuple[list[PackageSummary], bool]:
    """Return the packages, and whether the list is complete. Reads at most MAX_PAGES pages.

    If `namespace` is empty, the API key's namespace is used. Raises CliError, StoreError.
    """
    packages: list[PackageSummary] = []
    given = {"limit": str(PAGE), "namespace": namespace, "owner": owner or ""}
    query = {name: value for name, value in given.items() if value}
    for _ in range(MAX_PAGES):
        page = _page(send, query)
        packages += page.items
        if page.next is None:
            return packages, page.is_complete
        query["cursor"] = page.next
    return packages, False


def are_public(send: "Send", owner: str) -> bool | None:
    """Return whether an owner's packages are public, or None if rlrun-server is too old to report this.

    Raises CliError, StoreError.
    """
    return _page(send, {"limit": "1", "owner": owner}).public


def _page(send: "Send", query: Mapping[str, str]) -> PackagePage:
    from rlrun.storage.errors import StorageServerUnavailable

    try:
        return PackagePage.model_validate(send("GET", f"{PATH}?{urlencode(query)}", None))
    except ValidationError as error:
        raise StorageServerUnavailable("rlrun-server returned no package list: check its version") from error
