"""Adapter sidecar: brings published policies from S3 into the inference engine beside it."""
