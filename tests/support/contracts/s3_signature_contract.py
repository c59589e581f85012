"""Signatures that S3 accepts and refuses: the same cases with a real server and with SignedS3.

https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-authenticating-requests.html describes what the cases expect.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from unittest.mock import patch

import httpx
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.support.seaweedfs import S3Server

VALID_SECONDS = 600
"""Validity of a signature in a URL."""


@dataclass(frozen=True)
class Signature:
    """A signature, and the code of the error with which S3 answers it, empty if it is accepted."""

    error: str = ""
    key: str = ""
    """Access key, if it is another one than the server's."""
    secret: str = ""
    age: timedelta = field(default_factory=timedelta)
    in_query: bool = False

    def send(self, server: S3Server, name: str) -> tuple[int, str]:
        """Write an object. Returns the status and the code of the error."""
        given = Credentials(self.key or server.access_key_id, self.secret or server.secret_access_key)
        request = AWSRequest("PUT", f"{server.endpoint}/{server.bucket}/{name}")
        signer = S3SigV4QueryAuth if self.in_query else S3SigV4Auth
        options = {"expires": VALID_SECONDS} if self.in_query else {}
        signed_at = datetime.now(UTC) - self.age
        with patch("botocore.auth.get_current_datetime", lambda: signed_at):
            signer(given, "s3", "us-east-1", **options).add_auth(request)
        prepared = request.prepare()
        answer = httpx.put(prepared.url, headers=dict(prepared.headers))
        return answer.status_code, answer.text.partition("<Code>")[2].partition("</Code>")[0]


HOUR = timedelta(hours=1)
CASES = {
    "a header": Signature(),
    "a URL": Signature(in_query=True),
    "an unknown key": Signature("InvalidAccessKeyId", key="unknown"),
    "an unknown key in a URL": Signature("InvalidAccessKeyId", key="unknown", in_query=True),
    "a wrong secret": Signature("SignatureDoesNotMatch", secret="wrong"),
    "a wrong secret in a URL": Signature("SignatureDoesNotMatch", secret="wrong", in_query=True),
    "a clock that is slow": Signature("RequestTimeTooSkewed", age=HOUR),
    "a clock that is fast": Signature("RequestTimeTooSkewed", age=-HOUR),
    "a URL that has expired": Signature("AccessDenied", age=HOUR, in_query=True),
}
