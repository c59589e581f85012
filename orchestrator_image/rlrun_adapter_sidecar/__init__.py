"""Adapter sidecar: loads published policies from S3 into the inference engine of its pod."""
