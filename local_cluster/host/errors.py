"""The one error that people see: what failed, and what to do next."""


class LocalClusterError(RuntimeError):
    """Something about the local cluster failed; the message names the next step."""
