"""Writes the expected contracts as they are now: `python -m tests.unit.golden.regenerate [NAME...]`."""

import sys
from collections.abc import Sequence

from tests.unit.golden.contracts import documents
from tests.unit.golden.files import FOLDER, path_of, to_text


def main(names: Sequence[str]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    collect = documents()
    if unknown := set(names) - set(collect):
        sys.exit(f"there is no contract {', '.join(sorted(unknown))}; there are {', '.join(collect)}")
    for name in names or collect:
        path_of(name).write_text(to_text(collect[name]()), encoding="utf-8")
        print(path_of(name))


if __name__ == "__main__":
    main(sys.argv[1:])
