"""Run names derived from a title."""

import re
import secrets

from rlrun.constants import MAX_RUN_NAME

SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Letters of random name suffixes. Without vowels, so that no words appear."""
SUFFIX_LENGTH = 5


def slug(text: str) -> str:
    """Turn the text into the beginning of an object's name."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if not plain or not plain[0].isalpha():
        plain = f"run-{plain}".rstrip("-")
    return plain[: MAX_RUN_NAME - SUFFIX_LENGTH - 1].rstrip("-")


def with_suffix(title: str) -> str:
    """Return a name that no other run has: the title's, and a random suffix."""
    return f"{slug(title)}-{''.join(secrets.choice(SUFFIX_LETTERS) for _ in range(SUFFIX_LENGTH))}"
