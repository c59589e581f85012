"""Every test module lies where the module that it tests lies: a reader of either finds the other."""

from collections.abc import Iterator
from pathlib import Path

from tests.support.source_tree import ROOT

LEVELS = ("unit", "image", "lab")
FOLDERS = {
    "rlrun": "core",
    "rlrun_operator": "operator",
    "rlrun_cli": "cli",
    "rlrun_trainer": "trainer_image",
    "rlrun_orchestrator": "orchestrator_image",
    "rlrun_environment": "orchestrator_image",
    "rlrun_adapter_sidecar": "orchestrator_image",
    "rlrun_egress_proxy": "orchestrator_image",
    "rlrun_engine_access": "orchestrator_image",
    "rlrun_model_fetcher": "orchestrator_image",
    "rlrun_server": "server",
    "rlrun_tinker": "server",
    "rlrun_inference": "inference_image",
    "local_cluster": ".",
    "bench": ".",
    "demo": ".",
    "gpu": "tests",
    "mutants": "tests",
    "pictures": "tests",
    "proofs": "tests",
    "support": "tests",
}
"""Top-level packages, and the folder of the repository that each is in."""
WITHOUT_MODULES = frozenset({"chaos", "chart", "docs", "examples", "golden", "repository"})
"""Folders of tests that are about something else than a package of the product."""
SCENARIOS = "integration"
"""Tests of several modules together, named after their scenario."""
OTHER_SUBJECTS = frozenset({"lab/bench/test_uneven_text.py", "image/bench/test_bench.py"})
"""The environment and model beside the benchmarks, and the benchmarks as programs inside an image."""


def modules_tested(tests: Path) -> Iterator[tuple[str, Path | None]]:
    """Each test module below `tests`, with the place of the module that it mirrors; None if it mirrors none."""
    for level in LEVELS:
        for path in sorted((tests / level).rglob("test_*.py")):
            package, *inner = path.relative_to(tests / level).parts
            name = path.relative_to(tests).as_posix()
            if package in WITHOUT_MODULES or SCENARIOS in inner[:-1] or name in OTHER_SUBJECTS:
                continue
            if package not in FOLDERS:
                yield name, None
                continue
            yield name, ROOT / FOLDERS[package] / package / Path(*inner).with_name(path.name.removeprefix("test_"))


def test_every_test_module_has_its_module() -> None:
    lost = [name for name, module in modules_tested(ROOT / "tests") if module is None or not module.is_file()]
    assert not lost, f"name the module that is tested, or put a scenario into `{SCENARIOS}/`"


def test_exceptions_exist() -> None:
    tests = ROOT / "tests"
    assert {name for name in OTHER_SUBJECTS if not (tests / name).is_file()} == set()
    assert {name for name in WITHOUT_MODULES if not any((tests / level / name).is_dir() for level in LEVELS)} == set()


def test_module_without_a_source_is_found(tmp_path: Path) -> None:
    for name in (
        "rlrun_cli/test_main.py",
        "rlrun_cli/test_gone.py",
        "nowhere/test_x.py",
        "rlrun/integration/test_y.py",
    ):
        file = tmp_path / "unit" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    found = {name: module is not None and module.is_file() for name, module in modules_tested(tmp_path)}
    assert found == {
        "unit/nowhere/test_x.py": False,
        "unit/rlrun_cli/test_gone.py": False,
        "unit/rlrun_cli/test_main.py": True,
    }
