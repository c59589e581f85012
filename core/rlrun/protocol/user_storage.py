"""S3 access for users who have no S3 credentials: rlrun-server signs their commands' requests, as it does for pods.

The API server identifies and authorizes the user: rlrun-server submits the token in a TokenReview, and checks with a
SubjectAccessReview whether the user may read or write the resource to which the object's key belongs. The routes differ
from those of pods, so that an installation can expose only the paths below /rlrun.
"""

from pydantic import Field

from rlrun.api.base.names import Text
from rlrun.api.base.s3_connection import S3Connection
from rlrun.protocol.storage_access import RequestToSign

USER_SIGN_PATH = "/rlrun/v1/sign"
"""Path for signing one request. POST UserSignRequest → storage_access.SignedHeaders."""
LOCATION_PATH = "/rlrun/v1/storage"
"""Path of the storage location. GET → StorageLocation."""
TOKEN_HEADER = "X-Rlrun-Token"
"""Header for the token if the request goes through the API server, which removes `Authorization`."""


class UserSignRequest(RequestToSign):
    """S3 request of a user."""

    namespace: str = Field(default="", max_length=63, pattern=r"^[a-z0-9-]*$")
    """Namespace in which the user works. Used only for environment packages, whose owner may have several namespaces:
    the server checks that the namespace belongs to the owner, and the user's permissions in it.
    """


class StorageLocation(S3Connection):
    """Location of the platform's files. Users' machines can reach the endpoint."""

    bucket: Text
    prefix: Text = ""
    problem: Text = ""
    """Reason why requests are currently not signed, or a limitation of the S3 server. Empty if there is neither."""
