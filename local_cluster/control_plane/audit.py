"""Audit log of the API server. It contains no bodies of requests and responses, and thus no Secrets.

Only requests of ServiceAccounts outside kube-system are recorded; these accounts belong to the platform. Tests compare
the permissions of their roles with the recorded requests.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        {"level": "None"},
    ],
}
MEGABYTES = 200
"""Size in MB at which the log is rotated. All end-to-end tests together write less."""


def log_file(state: Path) -> Path:
    """Return the path of the cluster's audit log in the state directory."""
    return state / "audit.log"


def api_server_flags(state: Path) -> list[str]:
    """Write the audit policy, and return the flags that make kube-apiserver use it."""
    policy = state / "audit-policy.yaml"
    policy.write_text(json.dumps(POLICY))
    return [
        f"--audit-policy-file={policy}",
        f"--audit-log-path={log_file(state)}",
        f"--audit-log-maxsize={MEGABYTES}",
        "--audit-log-maxbackup=1",
    ]


def read_events(state: Path) -> Iterator[dict[str, Any]]:
    """Yield the recorded events (audit.k8s.io/v1), including events in rotated logs. An incomplete line is skipped."""
    for file in sorted(state.glob("audit*.log")):
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                if line.endswith("\n"):
                    yield json.loads(line)
