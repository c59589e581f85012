"""Requests of one run's environment, where user code runs, to the processes of another run."""

import json

from demo.kubectl import Kubectl

SCRIPT = """
import json, sys, urllib.error, urllib.request

answers = {}
for name, (method, url) in json.loads(sys.argv[1]).items():
    request = urllib.request.Request(url, method=method, data=None if method == "GET" else b"{}")
    try:
        answers[name] = urllib.request.urlopen(request, timeout=20).status
    except urllib.error.HTTPError as error:
        answers[name] = error.code
    except OSError as error:
        answers[name] = 0
print(json.dumps(answers))
"""


def ask_as_stranger(kubectl: Kubectl, run: str, namespace: str, other: str) -> dict[str, int]:
    """Return the HTTP status of each request, 0 without an answer. Both namespaces have a run of that name."""
    hosts = {role: f"http://{run}-{role}.{other}.svc" for role in ("trainer", "env-0", "orchestrator", "inference")}
    requests = {
        "trainer: open a session": ("PUT", f"{hosts['trainer']}:8080/sessions/x"),
        "trainer: policies": ("GET", f"{hosts['trainer']}:8080/sessions/x/policies/p/manifest.json"),
        "environment: roll out": ("POST", f"{hosts['env-0']}:8080/groups"),
        "orchestrator: status": ("GET", f"{hosts['orchestrator']}:8080/status"),
        "gateway: package": ("GET", f"{hosts['orchestrator']}:8000/environments/rlrun/reverse-text"),
        "sidecar: adapters": ("GET", f"{hosts['inference']}:8001/adapters"),
        "engine: models": ("GET", f"{hosts['inference']}:8000/v1/models"),
        "engine: completion": ("POST", f"{hosts['inference']}:8000/v1/chat/completions"),
        "engine: load an adapter": ("POST", f"{hosts['inference']}:8000/v1/load_lora_adapter"),
        "engine: tokenize": ("POST", f"{hosts['inference']}:8000/tokenize"),
        "engine: load": ("GET", f"{hosts['inference']}:8000/load"),
    }
    command = ("exec", "-n", namespace, f"replicaset/{run}-env-0", "--", "python", "-c", SCRIPT, json.dumps(requests))
    answers: dict[str, int] = json.loads(kubectl(*command))
    return answers
