"""The orchestrator: rollouts in, optimizer steps out, and the OpenAI endpoint that environments talk to.

app, assembly   one attempt, put together        live            what may change while it runs
loop            collect, train, publish, save, report; publishing and saving go on beside it
which example   buffer, deal, filtering, drought; saved_state, recovery: how a run goes on
which group     group_tracker (state), scheduler (rules), dispatcher (tasks), rollouts, advantages, trajectories
which batch     batch, batching; demonstrations and tokenizer for supervised steps, teacher for distillation
measuring       evaluator, eval_metrics, room; metrics, histogram, diagnosis, totals (pure)
telling         reporter, exposition (Prometheus), wandb_log and wandb_writer; board and status_conditions (run_status)
keeping         recorder and spool (S3)
the others      trainer_session, trainer_client, environments, environment_client, inference, sidecar_client, storage

gateway/        the rollout gateway                environment/    the environment server: users' code runs there
sidecar/        policies into an engine            fetch/          a model's files onto a node
serving/        deployed adapters into an engine
"""
