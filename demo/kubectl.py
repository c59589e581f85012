"""Calls of kubectl and helm, and objects as JSON."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import yaml
from rlrun.kube import requests
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import ALL, ResourceKind
from rlrun.kube.sync_client import SyncApiTransport

Object = dict[str, Any]
T = TypeVar("T")


class CommandFailed(RuntimeError):
    """Failure of a command. The message is the command's output."""


class WaitedTooLong(RuntimeError):
    """Raised if a condition was not met before its deadline."""


@dataclass(frozen=True)
class Kubectl:
    """Commands for one cluster, with an explicit kubeconfig instead of the user's."""

    kubeconfig: Path
    program: str = "kubectl"
    helm_program: str = "helm"

    def __call__(self, *args: str, stdin: str | None = None, timeout: float = 120) -> str:
        """Run `kubectl ARGS` and return its output. Raises CommandFailed with its error output."""
        return self._run([self.program, *args], stdin, timeout)

    def helm(self, *args: str, timeout: float = 300) -> str:
        """Run `helm ARGS` and return its output. Raises CommandFailed with its error output."""
        return self._run([self.helm_program, *args], None, timeout)

    def _run(self, argv: list[str], stdin: str | None, timeout: float) -> str:
        if not (shutil.which(argv[0])):
            raise CommandFailed(f"{argv[0]} is not on this machine. `make up` builds it or explains how to install it.")
        env = os.environ | {"KUBECONFIG": str(self.kubeconfig)}
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=timeout, env=env, check=False)
        if done.returncode:
            raise CommandFailed(f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def apply(self, *objects: Object, namespace: str | None = None) -> None:
        """Apply objects, given as dictionaries, with server-side apply."""
        where = ["-n", namespace] if namespace else []
        text = yaml.safe_dump_all(objects)
        self("apply", "--server-side", "--force-conflicts", "-f", "-", *where, stdin=text)

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """Return an object, or None if it does not exist. Raises CommandFailed."""
        try:
            return self._transport.find(requests.get(_kind(kind), namespace, name))
        except ApiError as error:
            raise CommandFailed(str(error)) from error

    def list(self, kinds: str, namespace: str | None = None, selector: str | None = None) -> list[Object]:
        """Return all objects of these kinds, in one namespace or in all of them. Raises CommandFailed."""
        labels = {key: value for key, _, value in (part.partition("=") for part in (selector or "").split(",")) if key}
        try:
            pages = (requests.list_page(_kind(kind), namespace, labels) for kind in kinds.split(","))
            return [obj for page in pages for obj in self._transport.list(page)[0]]
        except ApiError as error:
            raise CommandFailed(str(error)) from error

    @cached_property
    def _transport(self) -> SyncApiTransport:
        # Polling with kubectl would start one process per request, each of which takes 0.1 s of CPU time.
        from kubernetes import config

        return SyncApiTransport(config.new_client_from_config(str(self.kubeconfig)))

    def ensure_namespace(self, name: str, *, is_tenant: bool = True) -> None:
        """Create the namespace if it does not exist. `is_tenant` adds the label of namespaces that may have runs."""
        labels = {"rlrun.dev/tenant": "true"} if is_tenant else {}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})


def _kind(name: str) -> ResourceKind:
    """Return the kind whose name or plural in lower case is `name`. Raises ValueError for an unknown kind."""
    for kind in ALL.values():
        if name in (kind.plural, kind.kind.lower()):
            return kind
    raise ValueError(f"unknown kind {name!r}; add it to rlrun.kube.kinds")


def wait_for(what: str, poll: Callable[[], T | None], seconds: float, every: float = 1.0) -> T:
    """Poll until `poll` returns a true value, and return it.

    Raises:
        WaitedTooLong: There was no such value within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = poll()
        if value:
            return value
        if time.monotonic() > deadline:
            raise WaitedTooLong(f"waited {seconds:.0f} s without success for {what}")
        time.sleep(every)


def condition(obj: Object, kind: str) -> Object | None:
    """Return the condition of type `kind` from the status of an object, or None."""
    conditions: Iterable[Object] = obj.get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == kind), None)
