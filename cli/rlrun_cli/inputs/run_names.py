"""Derives run names from a title."""

import re
import secrets

from rlrun.constants import MAX_RUN_NAME

SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Characters of random name suffixes. Vowels are excluded, so that suffixes do not form words."""
SUFFIX_LENGTH = 5


def slug(text: str) -> str:
    """Convert text to a valid run name that leaves room for a suffix."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if not plain or not plain[0].isalpha():
        plain = f"run-{plain}".rstrip("-")
    return plain[: MAX_RUN_NAME - SUFFIX_LENGTH - 1].rstrip("-")


def with_suffix(title: str) -> str:
    """Return a run name: the title as a slug, with a random suffix."""
    return f"{slug(title)}-{''.join(secrets.choice(SUFFIX_LETTERS) for _ in range(SUFFIX_LENGTH))}"
