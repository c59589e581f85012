"""Builds the specification of a run's trainer session."""

from rlrun.api.model import Lora
from rlrun.protocol.policy import PolicyKind
from rlrun.protocol.resolved import ResolvedRun
from rlrun.protocol.trainer import SessionSpec

CLIENT_MAX_STEPS = 1_000_000
"""`max_steps` of the session of a run with `driver: Client`. The client decides when its training loop ends, so no
limit in the run's spec applies.
"""


def session_spec(run: ResolvedRun, max_steps: int, resume_from: str | None) -> SessionSpec:
    """Return the specification of the run's session. `resume_from` is the URI of a checkpoint of this run. Only if it
    is None, the specification contains `warm_start_from`. The run's adapter settings take precedence over the model's
    adapter settings.
    """
    spec, model = run.spec, run.model
    adapter = {name: value for name, value in spec.lora if name in Lora.model_fields and value not in (None, [])}
    return SessionSpec(
        run_uri=run.artifacts.run_uri,
        run_name=run.run.name,
        run_uid=run.run.uid,
        namespace=run.run.namespace,
        model=spec.model,
        kind=PolicyKind.adapter if spec.lora.enabled else PolicyKind.weights,
        lora=model.lora.model_copy(update=adapter),
        lora_alpha=spec.lora_alpha,
        learning_rate=spec.learning_rate,
        max_steps=max_steps,
        seq_len=model.seq_len,
        sampling=spec.sampling,
        warmup_steps=spec.warmup_steps,
        schedule=spec.schedule,
        decay_steps=spec.decay_steps,
        min_learning_rate=spec.min_learning_rate,
        weight_decay=spec.weight_decay,
        max_grad_norm=spec.max_grad_norm,
        gradient_accumulation_steps=spec.gradient_accumulation_steps,
        loss=spec.loss,
        kl_penalty=spec.kl_penalty,
        micro_batch_tokens=model.trainer.micro_batch_tokens,
        seed=spec.seed,
        resume_from=resume_from,
        warm_start_from=None if resume_from else run.warm_start_from,
        warm_start_digest=None if resume_from else run.warm_start_digest,
        warm_start_optimizer=bool(resume_from) or spec.checkpoint_optimizer,
    )
