"""Go programs of the cluster, built from pinned modules and cached by content.

The key of a build is a hash of its sources (`go.mod`, `go.sum`, `*.go`) and flags, so a changed pin makes a new folder
in the cache. No binary is downloaded.
"""

from __future__ import annotations

import hashlib
import platform
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from local_cluster.host import versions
from local_cluster.host.errors import LocalClusterError
from local_cluster.host.locks import file_lock
from local_cluster.host.paths import Paths
from local_cluster.host.progress import progress
from local_cluster.host.shell import run
from local_cluster.tools.go_toolchain import go_command
from local_cluster.tools.host_packages import weed

SOURCES = Path(__file__).resolve().parents[1] / "go"
_STAMP = "k8s.io/component-base/version"
_MINOR = versions.KUBERNETES.split(".")[1]


@dataclass(frozen=True)
class Build:
    """One `go build`.

    Attributes:
        name: Folder below `go/`, and name of the executable.
        package: Go package to build, relative to that folder.
        stamps: `-X` values of the linker.
        links: Names of symbolic links to the executable.
        in_cluster: The local cluster needs it. Others are built for the tests that use them.
    """

    name: str
    package: str = "."
    stamps: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    in_cluster: bool = True

    @property
    def flags(self) -> list[str]:
        """Arguments between `go build` and the package."""
        linker = " ".join(["-s", "-w", *(f"-X {stamp}" for stamp in self.stamps)])
        return ["-trimpath", "-buildvcs=false", "-ldflags", linker]

    @property
    def programs(self) -> tuple[str, ...]:
        """Names of the programs of this build."""
        return self.links or (self.name,)


BUILDS = (
    Build(
        "kubernetes",
        stamps=(
            f"{_STAMP}.gitVersion=v{versions.KUBERNETES}",
            f"{_STAMP}.gitMajor=1",
            f"{_STAMP}.gitMinor={_MINOR}",
            f"{_STAMP}.gitTreeState=clean",
            f"k8s.io/client-go/pkg/version.gitVersion=v{versions.KUBERNETES}",
        ),
        links=("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl"),
    ),
    Build("pause"),
    Build("etcd", package="go.etcd.io/etcd/server/v3"),
    Build("coredns"),
    Build("helm", "helm.sh/helm/v3/cmd/helm", (f"helm.sh/helm/v3/internal/version.version=v{versions.HELM}",)),
    Build("kueue", "sigs.k8s.io/kueue/cmd/kueue", in_cluster=False),
    Build("jobset", "sigs.k8s.io/jobset", in_cluster=False),
    Build("kubeflow-trainer", "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager", in_cluster=False),
    Build("kwok", "sigs.k8s.io/kwok/cmd/kwok", in_cluster=False),
)
PROGRAMS = {program: build for build in BUILDS for program in build.programs}
CONTROL_PLANE_BUILDS = ("kubernetes", "etcd")
# The Go linker is single-threaded for long stretches; two parallel builds use two cores.
_PARALLEL_BUILDS = 2


def cache_key(build: Build, sources: Path = SOURCES) -> str:
    """Return a short hash of all inputs of the build."""
    digest = hashlib.sha256()
    for part in (platform.machine(), build.package, *build.flags, *build.links):
        digest.update(part.encode() + b"\0")
    folder = sources / build.name
    for file in sorted([*folder.glob("go.*"), *folder.glob("*.go")]):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def folder_of(build: Build, paths: Paths) -> Path:
    """Return the folder of a build in the cache."""
    return paths.bin / f"{build.name}-{cache_key(build)}"


def program(name: str, paths: Paths) -> Path:
    """Return the path of a program. The program may not be built yet."""
    if name == "weed":
        return weed(paths)
    if name not in PROGRAMS:
        known = ", ".join(sorted([*PROGRAMS, "weed"]))
        raise LocalClusterError(f"The local cluster has no program {name!r}. Choose one of: {known}")
    return folder_of(PROGRAMS[name], paths) / name


def ensure_program(name: str, paths: Paths) -> Path:
    """Return the path of a program. Builds or downloads it if the cache lacks it."""
    if name in PROGRAMS:
        ensure_builds([PROGRAMS[name].name], paths)
    return program(name, paths)


def ensure_builds(names: Iterable[str], paths: Paths) -> None:
    """Build the programs that the cache lacks, two at a time."""
    wanted = [build for build in BUILDS if build.name in set(names) and not _is_built(build, paths)]
    if not wanted:
        return
    go = go_command(paths)
    stop = threading.Event()

    def build_unless_failed(build: Build) -> None:
        if stop.is_set():
            return
        try:
            _build(build, go, paths)
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(max_workers=_PARALLEL_BUILDS) as pool:
        for future in [pool.submit(build_unless_failed, build) for build in wanted]:
            future.result()


def module_folder(name: str, module: str, paths: Paths) -> Path:
    """Return the folder with the sources of a module that a build uses: they include manifests, such as CRDs."""
    go, folder = go_command(paths), SOURCES / name
    env = {"GOWORK": "off", "GOTOOLCHAIN": "local"}
    run([go, "mod", "download", module], cwd=folder, env=env)
    return Path(run([go, "list", "-m", "-f", "{{.Dir}}", module], cwd=folder, env=env).stdout.strip())


def _is_built(build: Build, paths: Paths) -> bool:
    return all((folder_of(build, paths) / name).exists() for name in build.programs)


def _build(build: Build, go: Path, paths: Paths) -> None:
    target = folder_of(build, paths)
    with file_lock(target.with_name(target.name + ".lock")):
        if _is_built(build, paths):
            return
        with progress.step(f"build {build.name}"):
            target.mkdir(parents=True, exist_ok=True)
            partial = target / f"{build.name}.partial"
            run(
                [go, "build", *build.flags, "-o", partial, build.package],
                cwd=SOURCES / build.name,
                # A Go workspace file above the checkout must not change the build.
                env={"CGO_ENABLED": "0", "GOWORK": "off", "GOTOOLCHAIN": "local"},
                next_step="Check that `go mod download` works here, and that the disk has 10 GB free.",
            )
            partial.rename(target / build.name)
            for name in build.links:
                link = target / name
                link.unlink(missing_ok=True)
                link.symlink_to(build.name)
