"""Containers that cannot start: images and configuration."""

import pytest
from rlrun.api.run_status import StartupFailureKind
from rlrun.kube.objects import Obj
from rlrun_operator.planning.diagnosis.container_waits import explain_wait

from tests.support.cluster_objects import pod


def waits(reason: str, message: str = "") -> tuple[Obj, Obj]:
    obj = pod("trainer", phase="Pending", state={"waiting": {"reason": reason, "message": message}})
    return obj, obj["status"]["containerStatuses"][0]


@pytest.mark.parametrize("reason", ["", "ContainerCreating", "PodInitializing", "CrashLoopBackOff"])
def test_a_container_that_needs_time_or_has_ended_does_not_wait(reason: str) -> None:
    assert explain_wait(*waits(reason)) is None


IMAGES = [
    ("InvalidImageName", 'couldn\'t parse image name "a b"', "not that of an image"),
    ("ErrImageNeverPull", "", "pull policy is Never"),
    ("ImageInspectError", "Failed to inspect image", "remove the image from the node"),
    ("SignatureValidationFailed", "no signature exists", "sign the image"),
    ("ImagePullBackOff", "Back-off pulling image: SignatureValidationFailed: rejected", "sign the image"),
    ("RegistryUnavailable", "", "access to its registry"),
    ("ErrImagePull", "failed to authorize: 401 Unauthorized", "imagePullSecrets"),
    ("ErrImagePull", "pull access denied, repository does not exist", "imagePullSecrets"),
    ("ErrImagePull", "429 Too Many Requests - toomanyrequests: rate limit", "mirror"),
    ("ErrImagePull", "tls: failed to verify certificate: x509: unknown authority", "its authority"),
    ("ErrImagePull", "no match for platform in manifest: not found", "architecture"),
    ("ErrImagePull", "dial tcp: lookup registry: no such host", "DNS, proxy and firewall"),
    ("ErrImagePull", "write /var/lib: no space left on device", "disk is full"),
    ("ErrImagePull", "manifest unknown", "Correct the image in the RLModel"),
]


@pytest.mark.parametrize(("reason", "words", "advice"), IMAGES, ids=[f"{i[0]}-{i[2]}" for i in IMAGES])
def test_an_image_that_cannot_be_used(reason: str, words: str, advice: str) -> None:
    found = explain_wait(*waits(reason, words))
    assert found
    assert (found.problem.reason, found.kind) == ("ImagePullFailed", StartupFailureKind.image_pull)
    assert all(part in found.problem.message for part in ("img:1", reason, words, advice))


CREATIONS = [
    ("CreateContainerConfigError", 'secret "x" not found', "CreateContainerConfigError", "Create the missing object"),
    (
        "CreateContainerConfigError",
        "container has runAsNonRoot and image has non-numeric user (app)",
        "CreateContainerConfigError",
        "a number other than 0",
    ),
    ("CreateContainerError", "context deadline exceeded", "CreateFailed", "that the error names"),
    ("RunContainerError", "exec: no such file", "CreateFailed", "that the error names"),
    ("CreatePodSandboxError", "no runtime", "CreateFailed", "that the error names"),
]


@pytest.mark.parametrize(("waiting", "words", "reason", "advice"), CREATIONS, ids=[c[1] for c in CREATIONS])
def test_a_container_that_cannot_be_created(waiting: str, words: str, reason: str, advice: str) -> None:
    found = explain_wait(*waits(waiting, words))
    assert found
    assert (found.problem.reason, found.kind) == (reason, StartupFailureKind.config_error)
    assert words in found.problem.message
    assert advice in found.problem.message
