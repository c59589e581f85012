"""Tokens of an attempt: those that it began with, whatever the operator has learned since."""

import base64
from typing import Any

from rlrun_operator.cluster.runs import RunObjects
from rlrun_operator.controller.applier import Applier
from rlrun_operator.controller.observer import Observer
from rlrun_operator.controller.reconciler import Reconciler
from rlrun_operator.planning.plan.observation import RunKey
from rlrun_operator.resources.access.run_tokens import run_token

from tests.support.operator_world import World

KEY = b"k" * 32


def reconciler(world: World, key: bytes | None) -> Reconciler:
    observer = Observer(RunObjects(world.cluster), world.artifacts, world.poller, world.settings, key)
    applier = Applier(world.cluster.kube, world.artifacts)
    return Reconciler(observer, applier, world.settings, world.clock)


def token_in(world: World) -> str | None:
    secret: dict[str, Any] = world.cluster.find("Secret", "reverse-rlrun-token") or {"data": {}}
    text = secret["data"].get("RLRUN_TOKEN")
    return base64.b64decode(text).decode() if text else None


async def test_an_attempt_that_begins_gets_tokens_and_keeps_them(world: World) -> None:
    await reconciler(world, KEY).reconcile(RunKey("team", "reverse"))
    await reconciler(world, KEY).reconcile(RunKey("team", "reverse"))
    assert token_in(world) == run_token(KEY, world.run["metadata"]["uid"])
    del world.cluster.objects["Secret", "team", "reverse-rlrun-token"]
    await reconciler(world, KEY).reconcile(RunKey("team", "reverse"))
    assert token_in(world) == run_token(KEY, world.run["metadata"]["uid"]), "a Secret that was deleted comes back"


async def test_an_attempt_that_began_without_tokens_gets_none(world: World) -> None:
    """Its pods do not ask for them; those that are made again must fit."""
    await reconciler(world, None).reconcile(RunKey("team", "reverse"))
    await reconciler(world, None).reconcile(RunKey("team", "reverse"))
    assert token_in(world) is None
    del world.cluster.objects["ReplicaSet", "team", "reverse-env-0"]
    await reconciler(world, KEY).reconcile(RunKey("team", "reverse"))
    assert token_in(world) is None
    environment = world.cluster.find("ReplicaSet", "reverse-env-0")
    assert environment is not None
    assert "RLRUN_TOKEN" not in str(environment)
