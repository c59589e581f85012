"""Second run of the demo, which starts from the checkpoint of the first and samples only with the newest policy.

Its adapter is already trained at the first step, and the trainer's current policy samples every token. Any remaining
difference between the log-probabilities of engine and trainer is due to their implementations.
"""

import copy
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from demo.run_metrics import Line

STEPS = 6
ON_POLICY = "mismatch_kl/on_policy/mean"
MISMATCH_LIMIT = 1e-6
"""Limit of the mean mismatch KL per token, in nats, of a step in float32."""
WANTED_STEPS = 5
"""Minimum number of on-policy steps for the claim."""

Object = dict[str, Any]


def warm_run(run: Object, name: str, checkpoint: str) -> Object:
    """Return an RLRun like `run` that starts from the RLCheckpoint `checkpoint` and waits for each step's policy."""
    warm = copy.deepcopy(run)
    warm["metadata"]["name"] = name
    warm["spec"] |= {"checkpointId": checkpoint, "maxSteps": STEPS, "maxAsyncLevel": 0, "artifactPolicy": "Delete"}
    return warm


def figures(lines: Sequence[Line]) -> dict[str, Any]:
    """Return the figures of the run, computed from its metrics. Raises KeyError if no step was on policy."""
    on_policy = [line[ON_POLICY] for line in lines if line.get(ON_POLICY) is not None]
    if not on_policy:
        raise KeyError(f"no step reported {ON_POLICY}")
    return {
        "steps": len(lines),
        "reward": round(fmean(line["reward/mean"] for line in lines), 4),
        "mismatch_kl_on_policy": max(on_policy),
        "mismatch_kl_on_policy_steps": len(on_policy),
    }


def failed_claims(first: Mapping[str, Any], warm: Mapping[str, Any]) -> list[str]:
    """Return the claims about the warm run that do not hold. A number that is not finite satisfies no claim."""
    half = (first["reward_first"] + first["reward_last"]) / 2
    claims = {
        f"the trained adapter's on-policy mismatch KL is at most {MISMATCH_LIMIT} in every step, and at least "
        f"{WANTED_STEPS} steps are on policy": warm["mismatch_kl_on_policy"] <= MISMATCH_LIMIT
        and warm["mismatch_kl_on_policy_steps"] >= WANTED_STEPS,
        "a run that starts from the checkpoint keeps at least half of the gained reward": warm["reward"] >= half,
    }
    return [claim for claim, holds in claims.items() if not holds]
