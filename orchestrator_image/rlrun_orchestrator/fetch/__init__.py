"""Model fetcher: brings a base model's files into a pod before its containers start."""
