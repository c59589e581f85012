"""Versions of the policies that the turns of a group began with."""

from dataclasses import dataclass


@dataclass
class VersionSpan:
    """Oldest and newest version. Before the first turn both are the version that the group was dispatched with."""

    oldest: int
    newest: int
    has_turns: bool = False

    @classmethod
    def at(cls, version: int) -> "VersionSpan":
        """Return the span of a group that is dispatched with `version`."""
        return cls(version, version)

    def add_turn(self, version: int) -> None:
        """Record that a turn begins with `version`."""
        self.oldest = min(self.oldest, version) if self.has_turns else version
        self.newest = max(self.newest, version) if self.has_turns else version
        self.has_turns = True
