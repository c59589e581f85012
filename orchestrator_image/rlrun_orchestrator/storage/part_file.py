"""JSON lines in files of limited size, which are rewritten with each line because S3 cannot append.

Names sort by time, and a later process starts a new file.
"""

LINES_PER_PART = 50
BYTES_PER_PART = 512 * 1024


class PartFile:
    """File to which lines are appended until it is full and a new file begins. Not thread-safe."""

    def __init__(self, began: str) -> None:
        """`began` is the start time of the process, as sortable text."""
        self._began = began
        self._number = 0
        self._text = ""
        self._lines = 0

    def add(self, line: str) -> tuple[str, bytes]:
        """Add a line. Returns the name and the new content of the file that contains the line."""
        if self._lines >= LINES_PER_PART or len(self._text) >= BYTES_PER_PART:
            self._number += 1
            self._lines, self._text = 0, ""
        self._lines += 1
        self._text += f"{line}\n"
        return f"part-{self._began}-{self._number:05d}", self._text.encode()
