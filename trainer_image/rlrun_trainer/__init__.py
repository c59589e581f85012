"""Trainer: trains the LoRA adapters of K runs on one base model, or all weights for one run, behind an HTTP server.

server          HTTP routes and Prometheus metrics
sessions        one session per run: opening, steps, publication, checkpoints
artifacts       policies, checkpoints and adapters in S3, and the queue of their uploads
torch_backend   commands that all processes run on the model, and the format of checkpoints
optimization    one optimizer step: packing, sampling distribution, losses, KL penalty, learning rate
model           base model with adapter slots: loading, sharding, attention, file format of peft
runtime         settings, process group, thread for torch
"""
