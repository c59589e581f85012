"""Named checks of an installation. Each returns what it observed, or raises CheckFailed with the next step.

`rlrun doctor` and `helm test` use this module and print the same lines. A pod of `helm test` runs one check of
`CHECKS`: `python -m rlrun.installation.checks readyz URL... | dns NAME... | s3 | run`.
"""

import json
import os
import queue
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

Check = Callable[[], str]
"""Function that returns the observed state, or raises CheckFailed."""

SECONDS = float(os.environ.get("CHECK_SECONDS", "60"))
"""Time limit in seconds for a check that runs in a pod."""
PAUSE_SECONDS = 2.0
MAX_RESPONSE = 4096
"""Maximum number of bytes of an HTTP response that a finding quotes."""
ENDED = ("Completed", "Failed", "Stopped")


class CheckFailed(Exception):
    """Raised by a check that found a problem. Contains the problem and the next step."""

    def __init__(self, text: str, hint: str) -> None:
        super().__init__(text)
        self.hint = hint


@dataclass(frozen=True)
class Finding:
    """Result of one check."""

    name: str
    text: str
    """Observed state, or the problem."""
    hint: str = ""
    """Next step. Empty if there is no problem."""

    @property
    def is_problem(self) -> bool:
        """True if something is wrong."""
        return bool(self.hint)

    def lines(self) -> list[str]:
        """Return the line `ok NAME: TEXT`, or two lines with the problem and the next step."""
        word = "wrong" if self.is_problem else "ok"
        return [f"{word:<7}{self.name}: {self.text}", *([f"       do: {self.hint}"] if self.is_problem else [])]


def run_check(name: str, check: Check) -> Finding:
    """Run one check and return its finding. An unexpected exception is reported as a problem."""
    try:
        return Finding(name, check())
    except CheckFailed as problem:
        return Finding(name, str(problem), problem.hint)
    except Exception as problem:
        return Finding(name, f"the check failed: {type(problem).__name__}: {problem}", "report this as a bug in rlrun")


def run_checks(checks: Mapping[str, Check], seconds: float) -> list[Finding]:
    """Run the checks concurrently and return their findings in the order of `checks`.

    A check with no result `seconds` after the previous finding is reported as a problem.
    """
    results: dict[str, queue.SimpleQueue[Finding]] = {name: queue.SimpleQueue() for name in checks}

    def run(name: str) -> None:
        results[name].put(run_check(name, checks[name]))

    for name in checks:
        # Daemon threads, so that a hanging check does not keep the command from exiting.
        threading.Thread(target=run, args=(name,), daemon=True).start()
    findings = []
    for name, result in results.items():
        try:
            findings.append(result.get(timeout=seconds))
        except queue.Empty:
            hint = "try again; ask the platform team if the problem persists"
            findings.append(Finding(name, f"no response within {seconds:g} s", hint))
    return findings


def check_urls(*urls: str) -> str:
    """Check that each URL returns a success status. Raises CheckFailed if one of them does not within SECONDS."""

    def request(url: str) -> str:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                return f"{url}: {response.read(MAX_RESPONSE).decode().strip()}"
        except urllib.error.HTTPError as problem:
            with problem:
                body = problem.read(MAX_RESPONSE).decode(errors="replace").strip()
            raise OSError(f"{url}: status {problem.code}: {body}".rstrip(": ")) from None
        except OSError as problem:
            raise OSError(f"{url}: {problem}") from None

    hint = "read the log of the pod behind this URL, and check NetworkPolicies"
    return "; ".join(_retry(partial(request, url), hint) for url in urls)


def check_dns(*names: str) -> str:
    """Check that the names of Services resolve. Raises CheckFailed if one of them does not within SECONDS."""

    def resolve(name: str) -> str:
        try:
            return f"{name}: {socket.getaddrinfo(name, None)[0][4][0]}"
        except OSError as problem:
            raise OSError(f"{name}: {problem}") from None

    return "; ".join(_retry(partial(resolve, name), "check the cluster's DNS and NetworkPolicies") for name in names)


def _retry(attempt: Callable[[], str], hint: str) -> str:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return attempt()
        except OSError as problem:
            if time.monotonic() > deadline:
                raise CheckFailed(str(problem), hint) from None
            print(problem, flush=True)
            time.sleep(PAUSE_SECONDS)


def check_s3() -> str:
    """Write an object below RLRUN_S3_BUCKET and RLRUN_S3_PREFIX, read it and delete it. Raises CheckFailed."""
    from rlrun.storage.layout import S3Uri
    from rlrun.storage.store import Store, StoreError

    root = S3Uri(os.environ["RLRUN_S3_BUCKET"], os.environ.get("RLRUN_S3_PREFIX", "").strip("/"))
    folder, data = root / ".helm-test" / uuid.uuid4().hex, os.urandom(64)
    hint = "correct `s3` in the chart's values, or the permissions of its credentials"
    store = Store()
    try:
        store.put_bytes(folder / "object", data)
        if store.get_bytes(folder / "object") != data:
            raise CheckFailed(f"{folder}: S3 returned data that differs from what was written", hint)
        store.delete_prefix(folder)
    except StoreError as problem:
        raise CheckFailed(f"{folder}: {problem}", hint) from None
    return f"{folder}: written, read and deleted"


def check_run() -> str:
    """Create the RLRun in the environment variable RUN, wait until it completes, and delete it. Raises CheckFailed if
    the run is rejected or does not complete within SECONDS, or ApiError.
    """
    from kubernetes import client, config

    from rlrun.kube import requests
    from rlrun.kube.errors import ApiError
    from rlrun.kube.kinds import RLRUN
    from rlrun.kube.sync_client import SyncApiTransport

    config.load_config()
    api = SyncApiTransport(client.ApiClient())
    wanted = json.loads(os.environ["RUN"])
    namespace = wanted["metadata"]["namespace"]
    hint = "fix the cause that the message names, or correct `tests.run` in the chart's values"
    try:
        name = api.send(requests.create(wanted, None))["metadata"]["name"]
    except ApiError as problem:
        raise CheckFailed(f"the run was rejected: {problem.message}", hint) from None
    deadline, shown = time.monotonic() + SECONDS, ""
    try:
        while True:
            status = (api.find(requests.get(RLRUN, namespace, name)) or {}).get("status") or {}
            text = " ".join(str(status[key]) for key in ("phase", "reason", "message") if status.get(key))
            if text != shown:
                print(f"{name}: {text}", flush=True)
                shown = text
            if status.get("phase") == "Completed":
                return f"{name} completed"
            if status.get("phase") in ENDED:
                raise CheckFailed(f"{name} did not complete: {text}", hint)
            if time.monotonic() > deadline:
                late = f"{name} had not ended after {SECONDS:.0f} s (tests.run.timeoutSeconds)"
                raise CheckFailed(f"{late}: {text or 'no status'}", hint)
            time.sleep(PAUSE_SECONDS)
    finally:
        api.find(requests.delete(RLRUN, namespace, name))


CHECKS: Mapping[str, Callable[..., str]] = {"readyz": check_urls, "dns": check_dns, "s3": check_s3, "run": check_run}
"""Checks that run in the pods of `helm test`, by name."""


def main(arguments: Sequence[str]) -> None:
    """Run the check that the arguments name, and print its finding. Raises SystemExit if it is a problem."""
    # A pod that is terminated deletes its run.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("the check was terminated"))
    name, *rest = arguments
    finding = run_check(name, partial(CHECKS[name], *rest))
    text = "\n".join(finding.lines())
    if finding.is_problem:
        raise SystemExit(text)
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
