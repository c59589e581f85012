"""Fields whose removal no test can notice, with the reason. `make proofs` fails for any other without a red test."""

REASONS: dict[str, str] = {}
