"""Error of the local cluster that users see."""


class LocalClusterError(RuntimeError):
    """Failure of the local cluster. The message says what happened and what to do."""
