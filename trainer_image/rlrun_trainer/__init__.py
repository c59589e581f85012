"""The trainer: one base model in memory, K LoRA adapters that learn on it, an HTTP server in front.

server      routes, nothing else                     settings    flags and RLRUN_* variables
sessions    which run has which slot                 session     one run: steps, publishing, checkpoints
slots       base model and adapter slots             step        one optimizer step
packing     samples -> token-packed micro-batches    objective   one micro-batch's share of the gradient
loss        importance ratios, policy gradient       distribution  the engine's log-probs from the trainer's logits
kl_penalty  the price on leaving the starting model  schedule    the learning rate
adapters    the stock peft file format               checkpoint  everything needed to continue, bit for bit
publish     policy versions in S3, pruned            uploads     background uploads that retry
"""
