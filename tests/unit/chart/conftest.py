"""The chart as Helm renders it."""

import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from local_cluster.host.paths import paths
from local_cluster.tools.binaries import ensure_program

CHART = Path(__file__).resolve().parents[3] / "charts" / "rlrun"
LOCAL = CHART / "values-local.yaml"
KUBERNETES = "1.35.4"
VERSION: str = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]

Object = dict[str, Any]


@dataclass(frozen=True)
class Rendered:
    """What `helm template` printed."""

    objects: list[Object]

    def of(self, kind: str) -> list[Object]:
        return [o for o in self.objects if o["kind"] == kind]

    def one(self, kind: str, name: str | None = None) -> Object:
        (found,) = [o for o in self.of(kind) if name in (None, o["metadata"]["name"])]
        return found

    @property
    def settings(self) -> str:
        (found,) = [o for o in self.of("ConfigMap") if o["metadata"]["name"].endswith("-settings")]
        text: str = found["data"]["settings.yaml"]
        return text


Helm = Callable[..., "subprocess.CompletedProcess[str]"]
Render = Callable[..., Rendered]


@pytest.fixture(scope="session")
def helm() -> Helm:
    program = ensure_program("helm", paths())

    def run(*args: str | Path) -> "subprocess.CompletedProcess[str]":
        with tempfile.TemporaryDirectory() as home:
            return subprocess.run(
                [program, *args],
                env={"HOME": home, "PATH": "/usr/bin:/bin"},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )

    return run


@pytest.fixture(scope="session")
def template(helm: Helm) -> Helm:
    """`helm template` with values given as a dict; the local values below them unless `base` says otherwise."""

    def run(
        values: Object | None = None, *options: str, base: Path | None = LOCAL, release: str = "rlrun"
    ) -> "subprocess.CompletedProcess[str]":
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump(values or {}, file)
            file.flush()
            layers = [v for path in (base, Path(file.name)) if path for v in ("-f", path)]
            flags = ("-n", "rlrun-system", "--kube-version", KUBERNETES)
            return helm("template", release, CHART, *flags, *layers, *options)

    return run


@pytest.fixture(scope="session")
def render(template: Helm) -> Render:
    def run(values: Object | None = None, *flags: str, **options: Any) -> Rendered:
        done = template(values, *flags, **options)
        assert done.returncode == 0, done.stderr
        # libyaml: the parser in Python would take most of the time of these tests.
        return Rendered([o for o in yaml.load_all(done.stdout, yaml.CSafeLoader) if o])

    return run
