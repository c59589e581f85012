"""Check one part of the installation: `check_installation.py readyz URL... | dns NAME... | s3 | run`, for `helm test`.

Each check ends after its deadline, and says on its last line what failed and what to do.
"""

import json
import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from functools import partial

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from rlrun.storage.layout import S3Uri
from rlrun.storage.store import Store, StoreError

SECONDS = float(os.environ.get("CHECK_SECONDS", "60"))
MAX_ANSWER = 4096
"""Bytes of an answer that are shown."""
GROUP, VERSION, PLURAL = "rlrun.dev", "v1alpha1", "rlruns"
ENDED = ("Completed", "Failed", "Stopped")


class CheckFailed(Exception):
    """The part does not work. The text is for the platform team."""


def retry(attempt: Callable[[], str], advice: str) -> str:
    """Return the first answer of `attempt`. Raises CheckFailed once the deadline has passed."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return attempt()
        except OSError as problem:
            if time.monotonic() > deadline:
                raise CheckFailed(f"{problem}. {advice}") from None
            print(problem, flush=True)
            time.sleep(2)


def readyz(*urls: str) -> str:
    """Ask the operator whether it is ready, and rlrun-server whether it can sign requests to S3 and write artifacts."""

    def ask(url: str) -> str:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return f"{url}: {answer.read(MAX_ANSWER).decode()}"
        except urllib.error.HTTPError as problem:
            with problem:
                said = problem.read(MAX_ANSWER).decode(errors="replace").strip()
            raise OSError(f"{url}: status {problem.code}: {said}".rstrip(": ")) from None
        except OSError as problem:
            raise OSError(f"{url}: {problem}") from None

    advice = "Look at the log of the pod that answers, and at NetworkPolicies."
    return "\n".join(retry(partial(ask, url), advice) for url in urls)


def dns(*names: str) -> str:
    """Resolve names of Services."""

    def resolve() -> str:
        return "\n".join(f"{name}: {socket.getaddrinfo(name, None)[0][4][0]}" for name in names)

    return retry(resolve, f"Not all of {', '.join(names)} resolve: look at the cluster's DNS and at NetworkPolicies.")


def s3() -> str:
    """Write an object, read it back and delete it."""
    root = S3Uri(os.environ["RLRUN_S3_BUCKET"], os.environ.get("RLRUN_S3_PREFIX", "").strip("/"))
    folder, data = root / ".helm-test" / uuid.uuid4().hex, os.urandom(64)
    store = Store()
    try:
        store.put_bytes(folder / "object", data)
        if store.get_bytes(folder / "object") != data:
            raise CheckFailed(f"{folder}: S3 returned other data than was written.")
        store.delete_prefix(folder)
    except StoreError as problem:
        raise CheckFailed(f"{folder}: {problem} Correct `s3`, or the rights of its credentials.") from None
    return f"{folder}: written, read and deleted"


def run() -> str:
    """Create the run in the variable RUN, wait until it is Completed, and delete it."""
    config.load_config()
    api = client.CustomObjectsApi()
    wanted = json.loads(os.environ["RUN"])
    place = (GROUP, VERSION, wanted["metadata"]["namespace"], PLURAL)
    try:
        name = api.create_namespaced_custom_object(*place, wanted)["metadata"]["name"]
    except ApiException as problem:
        raise CheckFailed(f"The run was refused: {problem.body or problem.reason}. Correct `tests.run`.") from None
    deadline, shown = time.monotonic() + SECONDS, ""
    try:
        while True:
            status = api.get_namespaced_custom_object(*place, name).get("status") or {}
            text = " ".join(str(status[key]) for key in ("phase", "reason", "message") if status.get(key))
            if text != shown:
                print(f"{name}: {text}", flush=True)
                shown = text
            if status.get("phase") == "Completed":
                return f"{name}: ended"
            if status.get("phase") in ENDED:
                raise CheckFailed(f"{name} did not complete: {text}")
            if time.monotonic() > deadline:
                raise CheckFailed(
                    f"{name} had not ended after {SECONDS:.0f} s (tests.run.timeoutSeconds): {text or 'no status'}"
                )
            time.sleep(2)
    finally:
        api.delete_namespaced_custom_object(*place, name)


CHECKS: dict[str, Callable[..., str]] = {"readyz": readyz, "dns": dns, "s3": s3, "run": run}


def main(arguments: Sequence[str]) -> None:
    """Run the check that the arguments name. Raises SystemExit with the cause if it fails."""
    # A pod that is ended deletes its run.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("The check was ended."))
    try:
        print(CHECKS[arguments[0]](*arguments[1:]))
    except CheckFailed as problem:
        raise SystemExit(str(problem)) from None


if __name__ == "__main__":
    main(sys.argv[1:])
