"""docs/guides/quickstart.md, typed line by line on a local cluster without this project (`make quickstart`).

Real: `make push` with buildah into a registry, `helm install` with the values that it writes and images that the node
pulls by digest, every command of `rlrun`, GPUs that the scheduler counts, the run. What this machine lacks is replaced
in the text of the guide (REPLACED): CUDA's images by those for CPUs, the hub by the bucket, large pods by small ones.
"""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from demo.cluster import local_cluster
from demo.install import BUCKET, EXAMPLES, MODEL_URI, RELEASE, ROOT, SYSTEM_NAMESPACE, S3Access, ensure_model
from demo.kubectl import Kubectl, Object, wait_for
from local_cluster.addons import fake_gpus
from local_cluster.addons.kubectl import LocalClusterKubectl
from local_cluster.images.base import ensure_base
from local_cluster.images.buildah import buildah
from local_cluster.images.catalog import BASE_REFERENCE
from tests.support.guide import Runner, install_commands
from tests.support.image_registry import ImageRegistry, image_registry
from tests.support.source_tree import PYTHONPATH

GPUS = 2
SECONDS = 900.0
BLOCK_SECONDS = 3600.0
"""For one block: the images may have to be built."""
TEAM = "team"
MODEL = "qwen3-0.6b"
SMALL = ("operator", "runs", "egress")
"""Sections of values-local.yaml that make everything fit on one small node."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Kubectl, S3Access]]:
    """The local cluster with GPUs to request, without the project."""
    kubectl, s3 = local_cluster()
    assert not kubectl.get("deployment", f"{RELEASE}-operator", SYSTEM_NAMESPACE), "run `make down` first"
    node = LocalClusterKubectl(kubectl.program, kubectl.kubeconfig)
    ensure_model(kubectl, s3)
    fake_gpus.advertise(node, GPUS)
    yield kubectl, s3
    fake_gpus.advertise(node, 0)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageRegistry]:
    """A registry with the base image, which elsewhere is that of Docker Hub."""
    with image_registry(tmp_path_factory.mktemp("registry")) as found:
        ensure_base()
        buildah("push", "--tls-verify=false", BASE_REFERENCE, f"docker://{found.address}/base:1")
        yield found


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The repository in a folder that the guide may write to."""
    folder = tmp_path / "checkout"
    kept = shutil.ignore_patterns("__pycache__", "build", ".git", ".*_cache")
    shutil.copytree(ROOT, folder, ignore=kept, symlinks=True)
    return folder


def replaced(registry: ImageRegistry, s3: S3Access, small: Path, model: Path) -> dict[str, str]:
    """Return what stands in the guide, and what the test types in its place."""
    return {
        "make push REGISTRY=registry.example.com/ml": (
            f"make push REGISTRY={registry.address}/ml BASE={registry.address}/base:1 BUILDER=buildah CPU=1"
        ),
        "bucket: my-bucket": f"bucket: {BUCKET}",
        "endpoint: https://s3.example.com ": f"endpoint: {s3.cluster_endpoint}\n  publicEndpoint: {s3.endpoint} ",
        "MY-KEY-ID": s3.access_key_id,
        "MY-SECRET-KEY": s3.secret_access_key,
        "rlrun init rl.toml": "rlrun init --demo rl.toml",
        "\nrlrun run rl.toml": "\nsed -i 's|^max_steps = .*|max_steps = 1000|' rl.toml\nrlrun run rl.toml",
        # The run goes on while it is shown.
        "first   Running   20...": "first   Running   ...",
        "19     ...\n20     ...": "...\n...",
        "of step 20": "of step ...",
        "-f s3.yaml --wait": f"-f s3.yaml -f {small} --wait",
        "--source hf://Qwen/Qwen3-0.6B@c1899de289a04d12100db370d81485cdf75e47ca > model.yaml": (
            f"--source {MODEL_URI} > given.yaml\npython {model} given.yaml > model.yaml"
        ),
    }


ON_CPUS = """\
import sys, yaml
entry, like = yaml.safe_load(open(sys.argv[1])), yaml.safe_load(open({like!r}))["spec"]
for role in ("trainer", "inference"):
    assert entry["spec"][role]["gpus"] == 1
    entry["spec"][role].update({{k: v for k, v in like[role].items() if k != "gpus"}})
    entry["spec"][role]["env"].append({{"name": "RLRUN_DEVICE", "value": "cpu"}})
entry["spec"]["seqLen"] = like["seqLen"]
print(yaml.safe_dump(entry))
"""
"""Turns the printed entry into one that the engine for CPUs can serve. It still requests its GPUs."""


def test_quickstart(cluster: tuple[Kubectl, S3Access], registry: ImageRegistry, checkout: Path, tmp_path: Path) -> None:
    kubectl, s3 = cluster
    small, model = tmp_path / "small.yaml", tmp_path / "on_cpus.py"
    values = yaml.safe_load((ROOT / "charts/rlrun/values-local.yaml").read_text())
    small.write_text(yaml.safe_dump({name: values[name] for name in SMALL}))
    model.write_text(ON_CPUS.format(like=str(EXAMPLES / "models/reverse-text-tiny.yaml")))
    text = (ROOT / "docs/guides/quickstart.md").read_text()
    for shown, typed in replaced(registry, s3, small, model).items():
        assert shown in text, f"the guide no longer says {shown!r}"
        text = text.replace(shown, typed)
    guide = tmp_path / "quickstart.md"
    guide.write_text(text)
    kubeconfig = tmp_path / "kubeconfig"
    shutil.copy(kubectl.kubeconfig, kubeconfig)
    programs = tmp_path / "bin"
    path = install_commands(programs, sys.executable, kubectl.program)
    for name, command in {"helm": str(kubectl.helm_program), "pip": "true", "python3": sys.executable}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (programs / name).chmod(0o755)
    environment = {
        "PATH": f"{path}:{registry.programs}",
        "KUBECONFIG": str(kubeconfig),
        "PYTHONPATH": PYTHONPATH,
        "BUILDAH_ISOLATION": "chroot",
        "BUILDAH_LAYERS": "true",
        **registry.environment,
    }

    def platform() -> None:
        """Every pod of the chart runs an image of the registry, by digest."""
        pods = kubectl.list("pods", SYSTEM_NAMESPACE, f"app.kubernetes.io/instance={RELEASE}")
        images = {c["image"] for pod in pods for c in pod["spec"]["containers"]}
        assert images
        assert all(i.startswith(f"{registry.address}/ml/") and "@sha256:" in i for i in images), images

    def trains(name: str, step: str) -> None:
        """The run has made so many steps, and its trainer and engine hold a GPU each."""

        def observed() -> Object | None:
            run: Object = kubectl.get("rlrun", name, TEAM) or {}
            status = run.get("status") or {}
            assert status.get("phase") != "Failed", status
            return run if ((status.get("progress") or {}).get("step") or 0) >= int(step) else None

        wait_for(f"step {step} of {name}", observed, SECONDS)
        pods = kubectl.list("pods", TEAM, f"rlrun.dev/run={name}")
        with_gpus = {
            pod["metadata"]["labels"]["rlrun.dev/role"]
            for pod in pods
            for container in pod["spec"]["containers"]
            if (container.get("resources", {}).get("limits") or {}).get(fake_gpus.RESOURCE)
        }
        assert with_gpus == {"trainer", "inference"}

    def follows(*guides: str) -> None:
        """Leave the other guides to the levels that run them."""

    steps: dict[str, Callable[..., None]] = {"platform": platform, "trains": trains, "follows": follows}
    runner = Runner(guide, checkout, environment, steps, e2e=True, seconds=BLOCK_SECONDS)
    assert runner.run() >= 6
    wait_for(
        "the end of the platform's pods",
        lambda: not kubectl.list("pods", SYSTEM_NAMESPACE, "app.kubernetes.io/name=rlrun"),
        SECONDS,
    )
