"""What a run's spec says reaches its steps, and what a step leaves behind survives in state and checkpoint."""

import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from pydantic.alias_generators import to_snake
from rlrun.api.run_sections.rollouts import Sampling
from rlrun.protocol.policy import PolicyKind
from rlrun.protocol.train_batch import Sample, SampleLoss
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.store import Store
from rlrun_trainer.model.base_model import BaseModel
from rlrun_trainer.runtime.compute_thread import Compute
from rlrun_trainer.runtime.settings import TrainerSettings
from rlrun_trainer.sessions.session_registry import Sessions
from rlrun_trainer.sessions.training_session import TrainingSession
from rlrun_trainer.torch_backend.collective_executor import CollectiveExecutor
from transformers import GenerationConfig

from tests.image.rlrun_trainer.optimization.test_sampling_distribution import STOPS, WAYS, rollout
from tests.support import tiny_model
from tests.support.seaweedfs import S3Server

SMALL = {"micro_batch_tokens": 100_000}


@pytest.fixture
async def make_sessions(base: BaseModel, store: Store) -> AsyncIterator[Callable[..., Sessions]]:
    computes: list[Compute] = []

    def make(**settings: Any) -> Sessions:
        computes.append(Compute())
        chosen = TrainerSettings(**settings)
        return Sessions(CollectiveExecutor(base), computes[-1], store, chosen)

    yield make
    for compute in computes:
        compute.close()


@pytest.fixture
def sessions(make_sessions: Callable[..., Sessions]) -> Sessions:
    return make_sessions()


@pytest.fixture
def run_uri(s3_server: S3Server) -> str:
    return f"s3://{s3_server.bucket}/t/team/{uuid.uuid4().hex}"


@pytest.mark.proves("sampling.topP", "sampling.repetitionPenalty", "sampling.minTokens")
@pytest.mark.parametrize("way", ["top_p", "repetition_penalty", "min_tokens", "all"])
async def test_a_session_scores_tokens_with_the_runs_sampling_settings(
    base: BaseModel, sessions: Sessions, run_uri: str, way: str
) -> None:
    how = WAYS[way]
    base.model.generation_config = GenerationConfig(eos_token_id=list(STOPS))
    batch = [rollout(base, how, seed)[0] for seed in range(6)]
    plain = Sampling(temperature=how.temperature)
    session = await sessions.open("run", tiny_model.spec(run_uri, sampling=how))
    assert (await session.train(0, batch)).metrics["mismatch_kl/all/max"] < 1e-9
    bare = await sessions.open("plain", tiny_model.spec(run_uri + "-plain", sampling=plain, learning_rate=1e-9))
    assert (await bare.train(0, batch)).metrics["mismatch_kl/all/max"] > 1e-4


@pytest.mark.proves("warmupSteps", "learningRate")
async def test_the_rate_rises_in_the_runs_warmup(sessions: Sessions, run_uri: str) -> None:
    rates = {}
    for steps in (3, 0):
        spec = tiny_model.spec(f"{run_uri}-{steps}", warmup_steps=steps, learning_rate=0.8)
        session = await sessions.open(f"run{steps}", spec)
        rates[steps] = [(await session.train(step, tiny_model.samples(4))).metrics["optim/lr"] for step in range(5)]
    assert rates[3] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8])
    assert rates[0] == [0.8] * 5


@pytest.mark.proves("gradientAccumulationSteps")
@pytest.mark.parametrize(("steps", "micro_batches"), [(1, 1), (5, 5)])
async def test_a_step_is_split_as_asked(sessions: Sessions, run_uri: str, steps: int, micro_batches: int) -> None:
    session = await sessions.open("run", tiny_model.spec(run_uri, gradient_accumulation_steps=steps, **SMALL))
    result = await session.train(0, tiny_model.samples(12))
    assert result.metrics["batch/micro_batches"] == micro_batches


@pytest.mark.proves("loss.ratioLimit", "loss.ratioLow", "loss.ratioHigh")
@pytest.mark.parametrize(
    ("loss", "masked"),
    [
        ({}, 0.0),
        ({"ratioLow": 1.0, "ratioHigh": 1.0}, 1.0),
        ({"ratioLow": 1.0, "ratioHigh": 1.0, "ratioLimit": "clip"}, 0.0),
        ({"sequenceMeanLow": 1.0, "sequenceMeanHigh": 1.0, "ratioLimit": "clip"}, 1.0),
    ],
)
async def test_the_loss_is_the_one_chosen(
    base: BaseModel, sessions: Sessions, run_uri: str, loss: dict[str, Any], masked: float
) -> None:
    batch = [rollout(base, Sampling(), seed)[0] for seed in range(6)]
    for sample in batch:
        sample.logprobs = [
            value - 0.1 if m else 0.0 for value, m in zip(sample.logprobs, sample.loss_mask, strict=True)
        ]
    session = await sessions.open("run", tiny_model.spec(run_uri, loss=loss))
    assert (await session.train(0, batch)).metrics["is_masked/mean"] == masked


def changed(field: str, value: Any, **others: Any) -> Any:
    """A field of the session, and specs that differ in nothing else."""
    section, _, name = to_snake(field).partition(".")
    change = {section: {name: value} if name else value}
    return pytest.param(others, others | change, id=field)


@pytest.mark.proves(
    "loraAlpha",
    "lora.rank",
    "lora.dropout",
    "lora.targetModules",
    "seed",
    "schedule",
    "decaySteps",
    "minLearningRate",
    "weightDecay",
    "maxGradNorm",
    "sampling.temperature",
    "klPenalty.beta",
    "loss.ratioType",
    "loss.ratioLow",
    "loss.ratioHigh",
    "loss.sequenceMeanLow",
    "loss.sequenceMeanHigh",
    "loss.sequenceTokenLow",
    "loss.sequenceTokenHigh",
    "loss.dppo.low",
    "loss.dppo.high",
    "loss.dppo.klTau",
)
@pytest.mark.parametrize(
    ("plain", "other"),
    [
        changed("loraAlpha", 24.0),
        changed("lora.rank", 2),
        changed("lora.dropout", 0.5),
        changed("lora.targetModules", ["q_proj"]),
        changed("seed", 4),
        changed("schedule", "cosine", warmup_steps=1),
        changed("decaySteps", 3, schedule="linear", max_steps=4),
        changed("minLearningRate", 5e-3, schedule="cosine", warmup_steps=1),
        changed("weightDecay", 0.5),
        changed("maxGradNorm", 1e-7),
        changed("sampling.temperature", 0.5),
        changed("klPenalty.beta", 5.0, kl_penalty={}),
        changed("loss.ratioType", "sequence"),
        changed("loss.ratioLow", 0.99),
        changed("loss.ratioHigh", 1.0),
        changed("loss.sequenceMeanLow", 0.99),
        changed("loss.sequenceMeanHigh", 1.0),
        changed("loss.sequenceTokenLow", 0.9),
        changed("loss.sequenceTokenHigh", 1.1),
        changed("loss.dppo", {"low": 0.001}, loss={"dppo": {}}),
        changed("loss.dppo", {"high": 0.001}, loss={"dppo": {}}),
        changed("loss.dppo", {"klTau": 1.0}, loss={"dppo": {}}),
    ],
)
async def test_a_field_of_the_session_changes_its_steps(
    sessions: Sessions, run_uri: str, plain: dict[str, Any], other: dict[str, Any]
) -> None:
    async def learn(name: str, changes: dict[str, Any]) -> list[float]:
        session = await sessions.open(name, tiny_model.spec(f"{run_uri}-{name}", **changes))
        # The first step begins at the reference: its penalty is none.
        results = [await session.train(step, tiny_model.samples(8, seed=step)) for step in range(2)]
        await sessions.close(name)
        return [result.metrics[key] for result in results for key in ("loss/mean", "optim/grad_norm", "optim/lr")]

    first = await learn("first", plain)
    assert await learn("second", plain) == first
    assert await learn("third", other) != first


@pytest.mark.proves("klPenalty.targetKl")
async def test_beta_goes_on_from_a_checkpoint(sessions: Sessions, run_uri: str) -> None:
    spec = tiny_model.spec(run_uri, kl_penalty={"beta": 0.3, "targetKl": 1e-9})
    session = await sessions.open("run", spec)
    betas = []
    for step in range(4):
        result = await session.train(step, tiny_model.samples(8, seed=step))
        betas.append(result.metrics["kl_penalty/beta"])
        if step == 1:
            await session.save_checkpoint(2, {})
    # Nothing has moved before the first step; then the divergence is far above its target.
    assert betas == pytest.approx([0.3, 0.3 * 0.98, 0.3 * 0.98 * 1.02, 0.3 * 0.98 * 1.02**2])
    assert await sessions.drain(30) == 0
    await sessions.close("run")
    saved = str(RunLayout(S3Uri.parse(run_uri)).checkpoint(2))
    resumed = await sessions.open("run", spec.model_copy(update={"resume_from": saved}))
    again = [
        (await resumed.train(step, tiny_model.samples(8, seed=step))).metrics["kl_penalty/beta"] for step in range(2, 4)
    ]
    assert again == betas[2:]


def demonstrations(seed: int) -> list[Sample]:
    return [
        replace(sample, loss=SampleLoss.cross_entropy, logprobs=[0.0] * len(sample.token_ids))
        for sample in tiny_model.samples(8, seed)
    ]


async def distance(session: TrainingSession, step: int) -> float:
    """Divergence from the reference before a step of reinforcement learning."""
    return (await session.train(step, tiny_model.samples(8, seed=step))).metrics["kl_penalty/kl"]


@pytest.mark.proves("klPenalty.enabled")
@pytest.mark.parametrize("kind", PolicyKind)
async def test_a_warm_start_begins_at_its_own_reference(sessions: Sessions, run_uri: str, kind: PolicyKind) -> None:
    changes: dict[str, Any] = {"kind": kind, "kl_penalty": {"beta": 0.3}}
    first = await sessions.open("run", tiny_model.spec(run_uri, **changes))
    assert await distance(first, 0) == pytest.approx(0.0, abs=1e-9)
    assert await distance(first, 1) > 1e-4
    await first.save_checkpoint(2, {})
    assert await sessions.drain(30) == 0
    await sessions.close("run")
    source = str(RunLayout(S3Uri.parse(run_uri)).checkpoint(2))
    spec = tiny_model.spec(run_uri + "-second", uid="uid-2", warm_start_from=source, **changes)
    second = await sessions.open("second", spec)
    assert await distance(second, 0) == pytest.approx(0.0, abs=1e-9)
    assert await distance(second, 1) > 1e-4


@pytest.mark.proves("algorithm.sftSteps")
@pytest.mark.parametrize("kind", PolicyKind)
async def test_the_reference_is_the_end_of_the_demonstrations_and_survives_a_resume(
    sessions: Sessions, store: Store, run_uri: str, kind: PolicyKind
) -> None:
    spec = tiny_model.spec(run_uri, kind=kind, kl_penalty={"beta": 0.3})
    session = await sessions.open("run", spec)
    for step in range(2):
        await session.train(step, demonstrations(step))
    await session.save_checkpoint(2, {})
    assert await distance(session, 2) == pytest.approx(0.0, abs=1e-9)
    await session.save_checkpoint(3, {})
    third = await distance(session, 3)
    assert third > 1e-4
    digest = session.state.policy.digest
    assert await sessions.drain(30) == 0
    await sessions.close("run")
    for saved in (3, 2):
        source = RunLayout(S3Uri.parse(run_uri)).checkpoint(saved)
        resumed = await sessions.open("run", spec.model_copy(update={"resume_from": str(source)}))
        again = [await distance(resumed, step) for step in range(saved, 4)]
        assert again[-1] == third
        assert resumed.state.policy.digest == digest
        await sessions.close("run")
        store.delete_prefix(source)  # a session starts from the newest checkpoint


async def test_session_state_has_the_result_of_the_last_step(
    make_sessions: Callable[..., Sessions], base: BaseModel, run_uri: str
) -> None:
    sessions = make_sessions()
    session = await sessions.open("run", tiny_model.spec(run_uri))
    assert session.state.last is None
    for step in range(2):
        result = await session.train(step, tiny_model.samples(8))
        assert session.state.last == result
        assert result.step == session.state.step == step + 1
    await session.save_checkpoint(2, {})
    assert session.state.last == result
    assert await sessions.drain(30) == 0
    await sessions.close("run")
    saved = str(RunLayout(S3Uri.parse(run_uri)).checkpoint(2))
    other = await make_sessions().open("run", tiny_model.spec(run_uri, resume_from=saved))
    assert other.state.step == 2
    assert other.state.last is None


async def test_demonstrations_have_no_age(sessions: Sessions, run_uri: str) -> None:
    session = await sessions.open("run", tiny_model.spec(run_uri))
    batch = [
        replace(sample, loss=SampleLoss.cross_entropy, policy_version=0) for sample in tiny_model.samples(6, seed=2)
    ]
    await session.train(0, tiny_model.samples(4))
    metrics = (await session.train(1, tiny_model.samples(4, seed=1) + batch)).metrics
    assert metrics["batch/off_policy_level/mean"] == 1
    assert not [key for key in (await session.train(2, batch)).metrics if "off_policy" in key]
