"""Model fetcher: downloads the files of a base model into a pod before its containers start."""
