"""Trainer: trains the LoRA adapters of K runs on one base model, or all weights for one run, behind an HTTP server.

server      HTTP routes                              settings      flags and RLRUN_* variables
sessions    registry of open sessions                session       one run: steps, publication, checkpoints
opening     opening of a session                     shelf         newest policies, for engines without S3
slots       base model and adapter slots             step          one optimizer step
packing     samples to micro-batches                 objective     loss and gradient of a micro-batch
loss        policy gradient with importance ratios   distribution  the engine's log-probs from the trainer's logits
distillation  policy gradient towards a teacher
schedule    learning rate                            kl_penalty    KL penalty and its controller
adapters    file format of peft                      checkpoint    all state needed to continue bit for bit
publish     policy versions in S3                    uploads       bounded queue with retries
weights     all weights as a model folder            files         files of artifacts, in memory or on disk
crew        commands run by all processes            distributed   process group and collective operations
loading     loading of the model                     sharding      FSDP2
guard       layers that fail without blocking        compute       thread for torch
"""
