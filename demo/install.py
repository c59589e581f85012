"""Setup of a cluster: install the chart, add the model to the catalog, push the environment.

Each step can be repeated and skips what exists.
"""

import base64
import hashlib
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml
from rlrun.api.base.s3_connection import S3Connection
from rlrun.storage.layout import S3Uri
from rlrun.storage.manifest import ArtifactKind
from rlrun.storage.store import Store

from demo.example_job import ScriptJob
from demo.kubectl import Kubectl, wait_for

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("RLRUN_CACHE", Path.home() / ".cache" / "rlrun"))
SYSTEM_NAMESPACE = "rlrun-system"
RELEASE = "rlrun"
CHART = ROOT / "charts" / "rlrun"
EXAMPLES = ROOT / "examples"
TRAINER_IMAGE = "localhost/rlrun-trainer:local"
BUCKET = "rlrun"
MODEL_URI = S3Uri(BUCKET, "models/rlrun/reverse-text-tiny")

Say = Callable[[str], None]


@dataclass(frozen=True)
class S3Access:
    """Access to the cluster's S3."""

    endpoint: str
    access_key_id: str
    secret_access_key: str
    cluster_endpoint: str
    """URL of S3 for pods."""
    secret_name: str
    """Name of the Secret in the system namespace with the same credentials, used by Jobs."""

    def store(self) -> Store:
        """Return a store client with these credentials."""
        return Store(
            S3Connection(endpoint=self.endpoint),
            access_key_id=self.access_key_id,
            secret_access_key=self.secret_access_key,
        )

    def job_environment(self) -> dict[str, str]:
        """Return the variables that a Job needs in addition to the Secret."""
        return {"AWS_ENDPOINT_URL_S3": self.cluster_endpoint, "AWS_DEFAULT_REGION": "us-east-1"}

    def environment(self) -> dict[str, str]:
        """Return the AWS_* variables for the platform team's commands."""
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_DEFAULT_REGION": "us-east-1",
        }


def s3_access(kubectl: Kubectl, endpoint: str, cluster_endpoint: str, secret_name: str) -> S3Access:
    """Read the credentials from the Secret of the cluster. Raises KeyError if the Secret does not exist."""
    secret = kubectl.get("secret", secret_name, SYSTEM_NAMESPACE) or {"data": {}}
    data = {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
    return S3Access(endpoint, data["AWS_ACCESS_KEY_ID"], data["AWS_SECRET_ACCESS_KEY"], cluster_endpoint, secret_name)


def chart_values(s3: S3Access) -> list[str]:
    """Return helm's options for the local cluster. They publish the S3 endpoint that this machine can reach, for user
    commands.
    """
    return ["-f", str(CHART / "values-local.yaml"), "--set", f"s3.publicEndpoint={s3.endpoint}"]


def install_chart(kubectl: Kubectl, s3: S3Access, say: Say = print, *extra: str) -> None:
    """Install or upgrade the chart of this tree and wait until the operator is ready."""
    kubectl.ensure_namespace(SYSTEM_NAMESPACE, is_tenant=False)
    say("helm upgrade --install rlrun charts/rlrun")
    kubectl.helm(
        "upgrade", "--install", RELEASE, str(CHART), "-n", SYSTEM_NAMESPACE,
        *chart_values(s3), "--wait", "--timeout", "180s", *extra,
    )  # fmt: skip
    # The tag of local images never changes, so only a new pod uses a new image.
    kubectl("rollout", "restart", "deployment", "-n", SYSTEM_NAMESPACE, "-l", f"app.kubernetes.io/instance={RELEASE}")
    kubectl(
        "rollout", "status", "deployment", "-n", SYSTEM_NAMESPACE, "-l", f"app.kubernetes.io/instance={RELEASE}",
        "--timeout=180s", timeout=200,
    )  # fmt: skip


def model_files() -> list[Path]:
    """Return the scripts that make the example model, the entry point first."""
    folder = EXAMPLES / "reverse_text_model"
    entry = folder / "make_model.py"
    return [entry, *sorted(p for p in folder.glob("*.py") if p != entry)]


def ensure_model(kubectl: Kubectl, s3: S3Access, say: Say = print) -> None:
    """Upload the example's base model to S3, from the cache or after running its scripts in the cluster."""
    store = s3.store()
    digest = hashlib.sha256(b"".join(f.read_bytes() for f in model_files())).hexdigest()[:16]
    cached = CACHE / "models" / f"reverse-text-tiny-{digest}"
    manifest = store.read_manifest(MODEL_URI)
    if manifest is not None and manifest.details.get("scripts") == digest:
        say("model rlrun/reverse-text-tiny is in S3")
        return
    if not cached.is_dir():
        say("creating the model rlrun/reverse-text-tiny (a minute of supervised training, once)")
        job = ScriptJob(
            name="make-reverse-text-tiny",
            namespace=SYSTEM_NAMESPACE,
            image=TRAINER_IMAGE,
            files=model_files(),
            args=["--upload", str(MODEL_URI)],
            secret=s3.secret_name,
            env=s3.job_environment(),
        )
        job.run(kubectl, seconds=900, say=lambda line: say(f"  {line}"))
        store.download(MODEL_URI, cached)
        job.delete(kubectl)
    (cached / "manifest.json").unlink(missing_ok=True)
    store.upload_artifact(
        cached, MODEL_URI, ArtifactKind.model, model="rlrun/reverse-text-tiny", details={"scripts": digest}
    )
    say("model rlrun/reverse-text-tiny is in S3")


def let_users_in(kubectl: Kubectl, namespace: str) -> None:
    """Grant access to the server in this namespace for users whose kubeconfig has no token, like the local cluster's.

    Their commands use a token of the ServiceAccount `rlrun-user`, to which this function grants the ClusterRole `edit`.
    """
    kubectl.ensure_namespace(namespace)
    name = "rlrun-user"
    kubectl.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": name, "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        },
    )


def user_variables(kubectl: Kubectl) -> dict[str, str]:
    """Return the variables for a user's commands: a kubeconfig, and no S3 key."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return kept | {"KUBECONFIG": str(kubectl.kubeconfig)}


def rlrun(kubectl: Kubectl, *words: str) -> str:
    """Run a user's command and return its output. Raises RuntimeError if it fails."""
    command = [sys.executable, "-m", "rlrun_cli", *words]
    done = subprocess.run(command, env=user_variables(kubectl), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"rlrun {' '.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def push_environment(kubectl: Kubectl, folder: Path, say: Say = print) -> None:
    """Push an environment with `rlrun env push`, as a user of the namespace that has the owner's name.

    An edited example replaces its version, because the local cluster may have the version from before the edit.
    """
    owner = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["rlrun"]["owner"]
    let_users_in(kubectl, owner)
    say(rlrun(kubectl, "env", "push", str(folder), "-n", owner, "--force").strip())


def install_platform(kubectl: Kubectl, s3: S3Access, say: Say = print, *extra: str) -> None:
    """Install everything that `kubectl apply -f examples/reverse-text.yaml` needs. `extra` has options for helm."""
    install_chart(kubectl, s3, say, *extra)
    ensure_model(kubectl, s3, say)
    push_environment(kubectl, EXAMPLES / "environments" / "reverse_text", say)
    kubectl.apply(yaml.safe_load((EXAMPLES / "models" / "reverse-text-tiny.yaml").read_text()))
    wait_for("the model in the catalog", lambda: kubectl.get("rlmodel", "reverse-text-tiny"), 30)
