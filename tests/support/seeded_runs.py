"""Runs for tests of the page: objects with a status, metrics and rollouts, as operator and orchestrator write them."""

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from kubernetes import client
from rlrun.constants import GROUP
from rlrun.protocol.environment import FunctionReward
from rlrun.storage.layout import RunLayout, rollouts_name
from rlrun.storage.samples.object_file import encode_samples
from rlrun.storage.samples.record import LogprobSummary, SampleRecord, SampleSplit, SampleStatus, Timings, TokenCounts
from rlrun.storage.samples.summary import summarize

from tests.support.rest_api import SPEC
from tests.support.seaweedfs import S3Server

VERSION = "v1alpha1"
SECONDS_PER_STEP = 20
REPEATED = ("alpha", "gamma", "delta", "omega", "theta")


@dataclass
class SeededRuns:
    """Writes runs into an API server and an S3."""

    api: client.ApiClient
    s3: S3Server

    def run(self, namespace: str, name: str, status: Mapping[str, Any], /, **spec: Any) -> RunLayout:
        """Create a run with this status, and return the place of its files."""
        objects = client.CustomObjectsApi(self.api)
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "RLRun", "metadata": {"name": name}, "spec": SPEC | spec}
        made = objects.create_namespaced_custom_object(GROUP, VERSION, namespace, "rlruns", body)
        made["status"] = {"startTime": _time(-3600), **status}
        objects.replace_namespaced_custom_object_status(GROUP, VERSION, namespace, "rlruns", name, made)
        return RunLayout.of(self.s3.bucket, "", namespace, made["metadata"]["uid"])

    def artifact(
        self, namespace: str, kind: str, name: str, run: str, layout: RunLayout, step: int, **spec: Any
    ) -> None:
        """Create a Ready RLCheckpoint or RLAdapter of a run."""
        folder = layout.checkpoint(step) if kind == "RLCheckpoint" else layout.adapter(step)
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": kind,
            "metadata": {"name": name},
            "spec": {
                "runName": run,
                "runUid": layout.root.key.rpartition("/")[2],
                "model": SPEC["model"],
                "step": step,
                "uri": str(folder),
                **spec,
            },
        }
        objects, plural = client.CustomObjectsApi(self.api), f"{kind.lower()}s"
        made = objects.create_namespaced_custom_object(GROUP, VERSION, namespace, plural, body)
        made["status"] = {"phase": "Ready", "reward": 0.5, "sizeBytes": 12_345_678, "createdAt": _time(-60)}
        objects.replace_namespaced_custom_object_status(GROUP, VERSION, namespace, plural, name, made)

    def metrics(self, layout: RunLayout, steps: int, seed: int = 0, extra: Mapping[str, float] | None = None) -> None:
        """Write metrics of a run that learns."""
        chance = random.Random(seed)
        lines = [json.dumps({**_metrics(step, chance), **(extra or {})}) for step in range(1, steps + 1)]
        self.s3.store().put_bytes(layout.metrics("part-000001"), ("\n".join(lines) + "\n").encode())

    def samples(
        self,
        layout: RunLayout,
        step: int,
        groups: int = 4,
        rollouts: int = 4,
        text: str = "",
        environment: str = "reverse",
        agents: Sequence[str | None] = (None,),
    ) -> None:
        """Write the rollouts of a step. `text` is in everything that a tenant's code may write. Those of a group are of
        the agents in turn.
        """
        chance = random.Random(step)
        found = [
            [
                sample(step, group, rollout, chance, text, environment).model_copy(
                    update={"agent": agents[rollout % len(agents)]}
                )
                for rollout in range(rollouts)
            ]
            for group in range(groups)
        ]
        encoded = encode_samples(step, SampleSplit.train, found)
        store = self.s3.store()
        store.put_bytes(layout.rollouts(step), encoded.data)
        summary = summarize(
            encoded.index, environment=None, file=rollouts_name(step), size=len(encoded.data), omitted=0
        )
        store.put_bytes(
            layout.rollout_summaries(f"part-{step:06d}"), (summary.model_dump_json(by_alias=True) + "\n").encode()
        )


def sample(step: int, group: int, rollout: int, chance: random.Random, text: str, environment: str) -> SampleRecord:
    """Return one rollout of a run that learns to reverse words."""
    words = chance.sample(REPEATED, 3)
    wanted = " ".join(words)[::-1]
    reward = round(min(1.0, chance.random() * 0.5 + step / 40), 3)
    return SampleRecord(
        step=step,
        split=SampleSplit.train,
        group=f"g{step}-{group}",
        ordinal=step * 100 + group,
        rollout=f"g{step}-{group}-r{rollout}",
        environment=environment,
        example=group,
        policy_version=step - 1,
        staleness=1,
        status=SampleStatus.trained,
        reward=reward,
        advantage=round(reward - 0.5, 3),
        rewards={
            f"overlap{text}": FunctionReward(value=reward, weight=0.8),
            "format": FunctionReward(value=1.0, weight=0.2),
        },
        metrics={f"length{text}"[:60]: 12.0},
        tokens=TokenCounts(prompt=40, completion=25),
        turns=1,
        stop_condition=f"done{text}"[:60],
        logprob=LogprobSummary(mean=-0.4, min=-7.0, p05=-2.0, low=0.01),
        ms=Timings(generate=420.0, score=3.0),
        prompt=[
            {"role": "system", "content": f"You reverse text. {text}"},
            {"role": "user", "content": f"Reverse: {' '.join(words)} {text}"},
        ],
        completion=[{"role": "assistant", "content": f"{wanted[: 4 + rollout * 4]} {text}"}],
        answer=f"{wanted} {text}",
        info={f"source{text}": text or "made"},
    )


def _metrics(step: int, chance: random.Random) -> dict[str, Any]:
    learned = 1 - math.exp(-step / 40)
    near = chance.uniform(0.97, 1.03)
    line: dict[str, Any] = {"step": step, "time": _time((step - 1000) * SECONDS_PER_STEP)}
    line |= {
        "reward/mean": learned * near * 0.9,
        "reward/std": 0.2,
        "reward/reverse/mean": learned * near * 0.9,
        "metrics/overlap/mean": learned * near,
        "loss/mean": -0.02 * near,
        "loss/policy/mean": -0.02 * near,
        "entropy/all/mean": 1.5 * (1 - learned * 0.7) * near,
        "mismatch_kl/all/mean": 0.0004 * near,
        "mismatch_kl/all/max": 0.02 * near,
        "importance_ratio/mean": near,
        "is_masked/mean": 0.001 * near,
        "optim/grad_norm": 0.4 * near,
        "optim/lr": 1e-5,
        "batch/zero_variance": 0.3 * near,
        "batch/solve_none": 0.2 * near,
        "batch/solve_all": 0.1 * near,
        "batch/off_policy_level/mean": 1.0,
        "perf/throughput": 5200 * near,
        "time/step": SECONDS_PER_STEP * near,
        "error/mean": 0.004,
        "is_truncated/mean": 0.01,
        "seq_len/all/mean": 220 * near,
    }
    if step % 10 == 0:
        line["val_reward/mean"] = learned * 0.88
    return line


def _time(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
