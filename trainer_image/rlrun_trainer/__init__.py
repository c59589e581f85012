"""The trainer: one base model in memory, K LoRA adapters that learn on it or all its weights, an HTTP server in front.

server      routes, nothing else                     settings    flags and RLRUN_* variables
sessions    which run has which slot                 session     one run: steps, publishing, checkpoints
opening     where a session begins                   shelf       the newest policies, for engines without S3
slots       base model and adapter slots             step        one optimizer step
packing     samples -> token-packed micro-batches    objective   a micro-batch's share of loss and gradient
loss        importance ratios, policy gradient       distribution    the engine's log-probs from our logits
schedule    the learning rate                        kl_penalty  the price of leaving the starting model
adapters    the stock peft file format               checkpoint  everything needed to continue, bit for bit
publish     policy versions in S3, pruned            uploads     a bounded queue, tried until S3 has it
weights     all weights as a stock model folder      files       small files in memory, a model's on disk
crew        what all processes do in one order       distributed  the processes and what they tell each other
loading     the model from disk, as settings say     sharding    FSDP2; guard: layers that fail without a dead-lock
"""
