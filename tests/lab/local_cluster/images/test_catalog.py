"""An image's key follows everything that goes into it, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from local_cluster.host.errors import LocalClusterError
from local_cluster.host.paths import REPOSITORY
from local_cluster.images.catalog import CHAINS, IMAGES, ImageSpec, content_key, copied_paths, find

IMAGE = ImageSpec("thing", "thing/Dockerfile", (("TORCH", "cpu"),))
DOCKERFILE = """\
ARG BASE_IMAGE=base
FROM ${BASE_IMAGE}
COPY torch-${TORCH}.lock /opt/torch.lock
RUN echo COPY nothing
COPY --chown=1000 code \\
     more /opt/
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "thing").mkdir()
    (tmp_path / "thing/Dockerfile").write_text(DOCKERFILE)
    (tmp_path / "torch-cpu.lock").write_text("torch==1\n")
    (tmp_path / "torch-cuda.lock").write_text("torch==1\n")
    for folder in ("code", "more", "elsewhere"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text(f"# {folder}\n")
    return tmp_path


def test_sources_of_copy_lines_with_arguments_filled_in() -> None:
    assert copied_paths(DOCKERFILE, IMAGE.build_args) == ["torch-cpu.lock", "code", "more"]


@pytest.mark.parametrize("changed", ["thing/Dockerfile", "torch-cpu.lock", "code/a.py", "more/a.py"])
def test_key_changes_with_each_input(tree: Path, changed: str) -> None:
    before = content_key(IMAGE, tree, "base")
    with (tree / changed).open("a") as handle:
        handle.write("# a comment\n")
    assert content_key(IMAGE, tree, "base") != before


def test_key_changes_with_base_arguments_and_file_names(tree: Path) -> None:
    keys = {content_key(IMAGE, tree, "base"), content_key(IMAGE, tree, "other base")}
    keys.add(content_key(ImageSpec("thing", "thing/Dockerfile", (("TORCH", "cuda"),)), tree, "base"))
    (tree / "code/a.py").rename(tree / "code/b.py")
    keys.add(content_key(IMAGE, tree, "base"))
    assert len(keys) == 4


def test_key_ignores_bytecode_and_what_is_not_copied(tree: Path) -> None:
    before = content_key(IMAGE, tree, "base")
    (tree / "code/__pycache__").mkdir()
    (tree / "code/__pycache__/a.cpython-311.pyc").write_bytes(b"\0")
    (tree / "elsewhere/a.py").write_text("# other\n")
    (tree / "torch-cuda.lock").write_text("torch==2\n")
    assert content_key(IMAGE, tree, "base") == before


def test_copy_of_a_missing_path_is_named(tree: Path) -> None:
    (tree / "torch-cpu.lock").unlink()
    with pytest.raises(LocalClusterError, match=r"thing/Dockerfile copies torch-cpu\.lock"):
        content_key(IMAGE, tree, "base")


def test_unknown_image_lists_the_known_ones() -> None:
    with pytest.raises(LocalClusterError, match=r"trianer.*Choose from: .*trainer"):
        find(["trianer"])
    assert find([]) == IMAGES
    assert [image.name for image in find(["rlrun-trainer", "operator"])] == ["rlrun-trainer", "rlrun-operator"]


def test_images_of_one_chain_begin_with_the_same_layers() -> None:
    """The torch layer is stored and imported once only while its instructions are equal to the letter."""
    heavy = [(REPOSITORY / image.dockerfile).read_text() for image in CHAINS[0]]
    common = [text[text.index("ARG BASE_IMAGE") : text.index("# --- end of the common lines")] for text in heavy]
    assert "torch.lock" in common[0]
    assert common[0] == common[1]


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.short)
def test_every_image_runs_as_an_ordinary_user_and_names_no_host(image: ImageSpec) -> None:
    text = (REPOSITORY / image.dockerfile).read_text()
    assert "\nUSER 1000:1000\n" in text
    assert "://" not in text
    assert "<<" not in text


def test_paths_copied_by_dockerfiles_are_in_the_build_context() -> None:
    """`.dockerignore` names what may enter; a COPY of something else fails only at build time."""
    lines = (REPOSITORY / ".dockerignore").read_text().splitlines()
    allowed = [line[1:] for line in lines if line.startswith("!")]
    for image in IMAGES:
        for source in copied_paths((REPOSITORY / image.dockerfile).read_text(), image.build_args):
            assert any(Path(source).match(pattern) for pattern in allowed), source
