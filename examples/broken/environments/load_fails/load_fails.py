"""An environment whose `load_environment` raises: the run must say where and why, and not hang."""

import verifiers as vf


def load_environment(dictionary: str = "/data/words.txt") -> vf.Environment:
    """Reads a file that no pod has."""
    with open(dictionary) as words:
        raise AssertionError(f"{words.name} should not exist")
