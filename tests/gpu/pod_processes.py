"""The containers of a run's pods as processes of this machine, for a machine that has a GPU and no cluster.

Commands, arguments and variables are those that the operator writes into the pods. Only what a cluster provides is
replaced: folders of this machine for volumes, ports of it for addresses of pods, and keys of S3 for rlrun-server.
"""

import base64
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.protocol.access import TOKEN_VARIABLE
from rlrun.protocol.environment import VARIABLE
from rlrun.protocol.resolved import CONFIG_KEY, CONFIG_PATH, Endpoints, ResolvedRun
from rlrun.protocol.storage_access import GRANT_VARIABLE, SERVER_VARIABLE, TOKEN_FILE_VARIABLE
from rlrun.service.exit import TERMINATION_LOG_VARIABLE
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.base.naming import RunIdentity
from rlrun_operator.resources.base.pod_templates import MODEL_DIR
from rlrun_operator.resources.children import children

from tests.support.source_tree import PYTHONPATH, ROOT

Obj = dict[str, Any]

END_SECONDS = 60
SHARED_MOUNTS = ("/tmp", "/dev/shm")
"""Mounts that are folders of the machine itself."""
OF_THIS_PROJECT = ("AWS_", "RLRUN_")
"""Prefixes of variables that processes get from their pods alone."""
OF_A_CLUSTER = {SERVER_VARIABLE, TOKEN_FILE_VARIABLE, GRANT_VARIABLE}


@dataclass(frozen=True)
class Ports:
    """Ports of this machine, one for each that a pod of the run listens on."""

    trainer: int
    engine: int
    sidecar: int
    gateway: int
    status: int
    environment: int

    def endpoints(self, resolved: ResolvedRun) -> Endpoints:
        """Return the addresses for a run with one environment. Raises ValueError for several."""
        if len(resolved.endpoints.environments) != 1:
            raise ValueError("the run has several environments: name one, because all would listen on the same port")
        [environment] = resolved.endpoints.environments
        return Endpoints(
            trainer_url=f"http://127.0.0.1:{self.trainer}",
            inference_host="127.0.0.1",
            gateway_url=f"http://127.0.0.1:{self.gateway}",
            environments=[environment.model_copy(update={"url": f"http://127.0.0.1:{self.environment}"})],
        )

    def variables(self, container: str) -> dict[str, str]:
        """Return the variables of a container that name ports."""
        own: dict[str, dict[str, int | str]] = {
            "trainer": {"RLRUN_PORT": self.trainer},
            "sidecar": {"RLRUN_SIDECAR_PORT": self.sidecar, "RLRUN_ENGINE_URL": f"http://127.0.0.1:{self.engine}"},
            "environment": {f"{VARIABLE}_PORT": self.environment},
            "orchestrator": {
                "RLRUN_GATEWAY_PORT": self.gateway,
                "RLRUN_STATUS_PORT": self.status,
                "RLRUN_INFERENCE_PORT": self.engine,
                "RLRUN_SIDECAR_PORT": self.sidecar,
            },
        }
        return {name: str(value) for name, value in own.get(container, {}).items()}


@dataclass(frozen=True)
class Machine:
    """Folders, keys and interpreters of this machine."""

    folder: Path
    """Volumes and logs. Empty at the start."""
    model: Path
    """Weights of the base model."""
    storage: Mapping[str, str]
    """Variables with the address and the keys of S3."""
    pythons: Mapping[str, str]
    """Interpreter that has the packages of an image, by container."""
    variables: Mapping[str, str]
    """Variables for all processes, in addition."""


@dataclass(frozen=True)
class Planned:
    """Process of one container."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]


def plan(
    identity: RunIdentity,
    settings: OperatorSettings,
    resolved: ResolvedRun,
    ports: Ports,
    machine: Machine,
    token_key: bytes,
) -> list[Planned]:
    """Return the processes of a run, in the order in which a pod starts its containers. Writes its configuration."""
    resolved = resolved.model_copy(update={"endpoints": ports.endpoints(resolved)})
    made = children(identity, settings, resolved, b"no server signs requests", token_key=token_key)
    secrets = {o["metadata"]["name"]: _decoded(o) for o in made if o["kind"] == "Secret"}
    [config] = [o["data"] for o in made if o["kind"] == "ConfigMap"]
    config_dir = machine.folder / "config"
    config_dir.mkdir(parents=True)
    (config_dir / CONFIG_KEY).write_text(config[CONFIG_KEY], encoding="utf-8")
    found = []
    for workload in (o for o in made if o["kind"] in ("ReplicaSet", "Job")):
        pod = workload["spec"]["template"]["spec"]
        # The weights are here already, so nothing fetches them.
        before = [c for c in pod.get("initContainers", []) if c["name"] == "engine-access"]
        for container in [*before, *pod["containers"]]:
            found.append(_process(container, workload["metadata"]["name"], secrets, ports, machine))
    return found


def _process(
    container: Obj, pod: str, secrets: Mapping[str, dict[str, str]], ports: Ports, machine: Machine
) -> Planned:
    name = container["name"]
    folders = {MODEL_DIR: str(machine.model), str(CONFIG_PATH.parent): str(machine.folder / "config")}
    for mount in container["volumeMounts"]:
        if mount["mountPath"] not in (*SHARED_MOUNTS, *folders):
            folder = machine.folder / pod / mount["name"]
            folder.mkdir(parents=True, exist_ok=True)
            folders[mount["mountPath"]] = str(folder)

    # One pass, and the longest first: a folder of this machine may itself contain a path of the pod.
    longest_first = "|".join(re.escape(path) for path in sorted(folders, key=len, reverse=True))
    # Only whole paths: names of models and URIs may contain the same text.
    paths = re.compile(rf"(?<![\w.:/-])(?:{longest_first})(?=[/:,]|$)")

    def placed(text: str) -> str:
        return paths.sub(lambda found: folders[found[0]], text)

    environment: dict[str, str] = {}
    for source in container.get("envFrom", []):
        environment |= secrets.get(source["secretRef"]["name"], {})
    for entry in container.get("env", []):
        value = entry.get("value")
        if value is None and (reference := entry.get("valueFrom", {}).get("secretKeyRef")):
            value = secrets[reference["name"]].get(reference["key"], "")
        if value is not None and entry["name"] not in OF_A_CLUSTER:
            environment[entry["name"]] = placed(value)
    log = str(machine.folder / f"{name}.end")
    environment |= {TERMINATION_LOG_VARIABLE: log, f"{VARIABLE}_TERMINATION_LOG": log}
    environment |= {f"{VARIABLE}_DIR": str(machine.folder / pod / "package")} if name == "environment" else {}
    environment |= {**ports.variables(name), **machine.variables}
    if any(entry["name"] == SERVER_VARIABLE for entry in container.get("env", [])):
        environment |= machine.storage
    own_path = [path for path in (environment.get("PYTHONPATH"), "" if name == "vllm" else PYTHONPATH) if path]
    environment["PYTHONPATH"] = os.pathsep.join(own_path)
    python = machine.pythons[name]
    command = [placed(part) for part in (*container.get("command", []), *container.get("args", []))]
    if name == "vllm":
        command[command.index("--port") + 1] = str(ports.engine)
        command = [python, "-m", "vllm.entrypoints.cli.main", "serve", *command]
    elif command[0] == "python":
        command[0] = python
    return Planned(name, command, environment)


def _decoded(secret: Obj) -> dict[str, str]:
    return {name: base64.b64decode(value).decode() for name, value in secret["data"].items()}


def token_of(planned: Sequence[Planned]) -> str:
    """Return the token of the run."""
    return next(p.environment[TOKEN_VARIABLE] for p in planned if p.name == "orchestrator")


@contextmanager
def started(planned: Sequence[Planned], folder: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Start all processes, with a log `<folder>/<name>.log` each, and end them with the block.

    Raises subprocess.CalledProcessError if one that must end before the others does not end with 0.
    """
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for process in planned:
            own = {name: value for name, value in os.environ.items() if not name.startswith(OF_THIS_PROJECT)}
            variables = own | dict(process.environment)
            with (folder / f"{process.name}.log").open("wb") as log:
                if process.name == "engine-access":
                    subprocess.run(process.command, env=variables, cwd=ROOT, stdout=log, stderr=log, check=True)
                    continue
                running[process.name] = subprocess.Popen(
                    process.command, env=variables, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
                )
        yield running
    finally:
        for one in running.values():
            if one.poll() is None:
                one.send_signal(signal.SIGTERM)
        for one in running.values():
            with suppress(subprocess.TimeoutExpired):
                one.wait(END_SECONDS)
            # Also children of a process that has ended: an engine would keep the GPU.
            with suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()
