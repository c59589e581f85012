"""Go programs of the cluster, built from pinned modules and cached by content.

The key of a build is a hash of its sources (`go.mod`, `go.sum`, `*.go`) and flags, so a changed pin creates a new
folder in the cache. No binary is downloaded.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable
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
    """One `go build` of a module. Code that its programs share is compiled only once.

    Attributes:
        name: Folder of the module below `go/`.
        packages: Main packages. Each produces an executable named after the last element of its path.
        stamps: `-X` values of the linker. A program without the variable ignores them.
        links: Programs that are symbolic links, and the executables that they point to.
        tags: Build tags.
        in_cluster: True if the local cluster needs it. Others are built for the tests that use them.
    """

    name: str
    packages: tuple[str, ...]
    stamps: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    tags: tuple[str, ...] = ()
    in_cluster: bool = False

    @property
    def flags(self) -> list[str]:
        """Arguments between `go build` and the packages."""
        linker = " ".join(["-s", "-w", *(f"-X {stamp}" for stamp in self.stamps)])
        # The linker drops debugging information, so the compiler need not produce it.
        tags = [f"-tags={','.join(self.tags)}"] if self.tags else []
        return ["-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false", *tags, "-ldflags", linker]

    @property
    def executables(self) -> tuple[str, ...]:
        """Names of the files that `go build` writes."""
        return tuple(package.rsplit("/", 1)[-1] for package in self.packages)

    @property
    def programs(self) -> tuple[str, ...]:
        """Names under which the programs of this build are called."""
        targets = {target for _, target in self.links}
        return (*(name for name, _ in self.links), *(name for name in self.executables if name not in targets))


_DAEMONS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl")
BUILDS = (
    Build(
        "cluster",
        ("./kubernetes", "./etcd", "./coredns", "./pause", "helm.sh/helm/v3/cmd/helm"),
        stamps=(
            f"{_STAMP}.gitVersion=v{versions.KUBERNETES}",
            f"{_STAMP}.gitMajor=1",
            f"{_STAMP}.gitMinor={_MINOR}",
            f"{_STAMP}.gitTreeState=clean",
            f"k8s.io/client-go/pkg/version.gitVersion=v{versions.KUBERNETES}",
            f"helm.sh/helm/v3/internal/version.version=v{versions.HELM}",
        ),
        links=tuple((name, "kubernetes") for name in _DAEMONS),
        in_cluster=True,
    ),
    Build("kueue", ("sigs.k8s.io/kueue/cmd/kueue",)),
    Build("kwok", ("sigs.k8s.io/kwok/cmd/kwok",)),
    Build("kube-router", ("github.com/cloudnativelabs/kube-router/v2/cmd/kube-router",)),
    Build("gvisor", ("gvisor.dev/gvisor/runsc", "./containerd-shim-runsc-v1")),
    Build("lua", ("github.com/yuin/gopher-lua/cmd/glua",)),
    # Debian's Prometheus cannot discover targets in Kubernetes. Other discovery mechanisms would double the build time.
    Build(
        "prometheus",
        ("github.com/prometheus/prometheus/cmd/prometheus",),
        tags=("remove_all_sd", "enable_kubernetes_sd"),
    ),
)
PROGRAMS = {program: build for build in BUILDS for program in build.programs}
CLUSTER_BUILDS = tuple(build.name for build in BUILDS if build.in_cluster)


def cache_key(build: Build, sources: Path = SOURCES) -> str:
    """Return a short hash of all inputs of the build."""
    digest = hashlib.sha256()
    for part in (platform.machine(), *build.packages, *build.flags, *(f"{name}={to}" for name, to in build.links)):
        digest.update(part.encode() + b"\0")
    folder = sources / build.name
    for file in sorted([*folder.glob("go.*"), *folder.rglob("*.go")]):
        digest.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def folder_of(build: Build, paths: Paths) -> Path:
    """Return the folder of a build in the cache."""
    return paths.bin / f"{build.name}-{cache_key(build)}"


def program(name: str, paths: Paths) -> Path:
    """Return the path of a program, which may not be built yet."""
    if name == "weed":
        return weed(paths)
    if name not in PROGRAMS:
        known = ", ".join(sorted([*PROGRAMS, "weed"]))
        raise LocalClusterError(f"The local cluster has no program {name!r}. Choose one of: {known}")
    return folder_of(PROGRAMS[name], paths) / name


def ensure_program(name: str, paths: Paths) -> Path:
    """Return the path of a program. Builds or downloads it if it is not in the cache."""
    if name in PROGRAMS:
        ensure_builds([PROGRAMS[name].name], paths)
    return program(name, paths)


def missing_builds(names: Iterable[str], paths: Paths) -> list[Build]:
    """Return the builds that are not in the cache."""
    wanted = set(names)
    return [build for build in BUILDS if build.name in wanted and not _is_built(build, paths)]


def ensure_builds(names: Iterable[str], paths: Paths) -> None:
    """Build the programs that are not in the cache, one after another, because `go build` uses all cores."""
    for build in missing_builds(names, paths):
        _build(build, go_command(paths), paths)


def module_folder(name: str, module: str, paths: Paths) -> Path:
    """Return the folder with the sources of a module used in a build, which include manifests such as CRDs."""
    go, folder = go_command(paths), SOURCES / name
    env = {"GOWORK": "off", "GOTOOLCHAIN": "local"}
    run([go, "mod", "download", module], cwd=folder, env=env)
    return Path(run([go, "list", "-m", "-f", "{{.Dir}}", module], cwd=folder, env=env).stdout.strip())


def build_step(build: Build) -> str:
    """Return the name of a build's step, for the log and estimates."""
    return f"build {', '.join(build.executables)}"


def _is_built(build: Build, paths: Paths) -> bool:
    return all((folder_of(build, paths) / name).exists() for name in build.programs)


def _build(build: Build, go: Path, paths: Paths) -> None:
    target = folder_of(build, paths)
    with file_lock(target.with_name(target.name + ".lock")):
        if _is_built(build, paths):
            return
        with progress.step(build_step(build)):
            partial = target / "partial"
            partial.mkdir(parents=True, exist_ok=True)
            run(
                ["nice", go, "build", *build.flags, "-o", f"{partial}/", *build.packages],
                cwd=SOURCES / build.name,
                # A Go workspace file above the checkout must not affect the build.
                env={"CGO_ENABLED": "0", "GOWORK": "off", "GOTOOLCHAIN": "local"},
                next_step="Check that `go mod download` works here, and that the disk has 10 GB free.",
            )
            for name in build.executables:
                (partial / name).rename(target / name)
            partial.rmdir()
            for name, executable in build.links:
                link = target / name
                link.unlink(missing_ok=True)
                link.symlink_to(executable)
