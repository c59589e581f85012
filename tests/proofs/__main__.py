"""`python -m tests.proofs`: remove the effect of each field and check that a cited test fails. build/proofs.json."""

import argparse
import fnmatch
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.proofs.judge import FieldResult, accepted, in_shares, summary
from tests.proofs.play import LEVELS, Level, play
from tests.proofs.without_effect import REASONS
from tests.support.field_proofs import fields, proofs

PATH = Path("build/proofs.json")
DESCRIPTION = """Proofs of fields: docs/fields.md cites tests for each field of RLRun's spec. This command removes one
field after the other (its value is reset to its default before the rest of the system sees it) and requires that a
cited test fails which passes otherwise.

levels (unit, image and apiserver without --level; the cheapest first, until a test is red):
  unit       the removal is in RLRun's spec
  image      the trainer's tests; the removal is in the trainer's session, which the orchestrator makes of the spec
  apiserver  against a real kube-apiserver and etcd; the removal is in RLRun's spec
  e2e        on the local cluster, which must be up; only processes of this machine lose the field

Exit code 1 if a field is not red and tests/proofs/without_effect.py has no reason for it."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(
        "python -m tests.proofs", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--level", choices=LEVELS, action="append", help="only this level; may be repeated")
    found.add_argument("--field", metavar="NAME", action="append", help="only these: a name, or a pattern with *")
    found.add_argument("--every", action="store_true", help="play every cited test, and name those that stay green")
    found.add_argument("--workers", type=int, default=2, metavar="N", help="processes that share the fields (2)")
    found.add_argument("--output", type=Path, default=PATH, help=f"file of the results ({PATH})")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code: 0 if every field is red or accepted, 1 if not, 2 if no field has that name."""
    asked = parser().parse_args(arguments)
    levels: list[Level] = asked.level or ["unit", "image", "apiserver"]
    cited = proofs()
    names = [n for n in fields() if not asked.field or any(fnmatch.fnmatchcase(n, p) for p in asked.field)]
    if not names:
        print(f"No field of RLRun's spec matches {' or '.join(asked.field)}: see docs/fields.md", file=sys.stderr)
        return 2
    results = [FieldResult(name, cited.get(name, []), REASONS.get(name, "")) for name in names]
    for level in sorted(levels, key=LEVELS.index):
        open_fields = [r for r in results if r.cited_at(level) and (asked.every or not r.red)]
        workers = asked.workers if level in ("unit", "apiserver") else 1
        with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
            list(pool.map(lambda share: _play(level, share, asked.every), in_shares(open_fields, workers)))  # noqa: B023
        _write(asked.output, results)
    print("\n".join(summary(results, levels, every=asked.every)))
    return 0 if all(accepted(result, levels) for result in results) else 1


def _play(level: Level, share: list[FieldResult], every: bool) -> None:
    by_name = {result.field: result for result in share}
    for verdict in play(level, {result.field: result.cited_at(level) for result in share}, every=every):
        by_name[verdict.field].add(verdict)
        if verdict.verdict != "passed":
            print(
                f"{verdict.verdict:<8} {verdict.field} {verdict.test} ({verdict.seconds} s) {verdict.error}", flush=True
            )


def _write(path: Path, results: list[FieldResult]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"fields": [r.to_json() for r in results]}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
