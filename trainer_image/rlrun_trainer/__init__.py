"""The trainer: one base model in memory, K LoRA adapters that learn on it, an HTTP server in front.

server      routes, nothing else                     settings    flags and RLRUN_* variables
sessions    which run has which slot                 session     one run: steps, publishing, checkpoints
slots       base model and adapter slots             step        one optimizer step
packing     samples -> token-packed micro-batches    loss        log-probs, importance ratios, policy gradient
adapters    the stock peft file format               checkpoint  everything needed to continue, bit for bit
publish     policy versions in S3, pruned            uploads     background uploads that retry
"""
