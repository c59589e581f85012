"""Admission of requests to an engine that samples from the adapters of several runs. Only decides; never waits.

vLLM 0.32 batches at most `--max-loras` adapters, and an adapter leaves the batch only when it has no more requests. An
adapter outside of the batch is not scheduled while adapters in the batch get new requests. Therefore at most
`--max-loras` adapters have requests in the engine: each has a slot until its last request ends. While N other runs wait
for a slot, the N adapters that have had their slots for longest get no new requests. A free slot goes to the run that
last had a slot longest ago, so a run gains nothing by naming many adapters.

One slot is reserved for each run that has none: a run with a slot gets another one only while more slots are free than
are reserved. Otherwise its own oldest adapter gets no new requests while its next adapter waits. No slot is reserved
while there are more runs than slots.

vLLM processes requests in order of arrival, so requests that wait inside vLLM delay the requests of all other runs.
Therefore the engine gets no request while it has `capacity` sequences, and the next one comes from the run with the
fewest sequences in the engine. A request has one or more sequences, so the last one that is admitted may exceed a limit
by all of its sequences but one.

A run's requests are admitted in order of arrival, up to the run's limit. A request may pass an older one that waits for
a slot only if the run can still admit the older one.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import count, islice

QUEUE_FACTOR = 4
"""Number of a run's sequences that may wait per sequence that it may have in the engine. This is enough for a client
that sends a whole batch at once, and keeps the wait at a few times the duration of a response.
"""


class TicketState(Enum):
    """Progress of a request."""

    receiving = "receiving"
    waiting = "waiting"
    running = "running"


@dataclass(eq=False)
class Ticket:
    """Request of a run."""

    uid: str
    adapter: str | None
    """Name of the adapter in the engine, or None for a request that needs no slot."""
    sequences: int = 1
    stage: TicketState = TicketState.receiving
    number: int = 0
    """Position in the order of arrival."""


@dataclass
class _Run:
    limit: int = 0
    """Maximum number of running sequences. 0 after the run left the pool."""
    present: int = 0
    """Number of sequences of requests that have not ended."""
    running: int = 0
    """Number of sequences of running requests."""
    served: int = 0
    """Time at which one of the run's adapters last got or freed a slot."""
    started: int = 0
    """Time at which one of the run's requests last started."""
    slots: dict[str, None] = field(default_factory=dict)
    """Adapters with a slot, in the order in which they got it."""
    lines: OrderedDict[str | None, OrderedDict[Ticket, None]] = field(default_factory=OrderedDict)
    """Waiting requests by adapter. Adapters without a slot are in the order in which they will get a slot."""


class QueueFull(Exception):
    """Raised for a request of a run that has too many waiting requests."""


class Admission:
    """Admission of the requests of all runs of an engine. All methods but `enter` return the tickets that start now."""

    def __init__(self, slots: int, capacity: int) -> None:
        """`slots` is the maximum number of adapters with requests in the engine, and `capacity` the number of sequences
        in the engine at which no further request is admitted.
        """
        self._slots = slots
        self._capacity = capacity
        self._running = 0
        self._runs: dict[str, _Run] = {}
        self._active: dict[str, int] = {}
        """Number of running requests per adapter, in the order in which the adapters got their slots."""
        self._clock = count(1)

    def set_limits(self, limits: Mapping[str, int]) -> tuple[list[Ticket], list[Ticket]]:
        """Replace the runs and their maximum numbers of running sequences.

        Returns the waiting tickets of removed runs, which the caller ends, and the tickets that start now.
        """
        removed = [run for uid, run in self._runs.items() if uid not in limits]
        for run in removed:
            run.limit = 0
        self._runs = {uid: run for uid, run in self._runs.items() if uid in limits or run.present}
        for uid, limit in limits.items():
            self._runs.setdefault(uid, _Run()).limit = limit
        return [ticket for run in removed for line in run.lines.values() for ticket in line], self._admit()

    def enter(self, ticket: Ticket) -> None:
        """Count a request before its body is received. Raises QueueFull, or KeyError if the run is unknown."""
        run = self._runs[ticket.uid]
        if run.present >= run.limit * (1 + QUEUE_FACTOR):
            raise QueueFull
        run.present += ticket.sequences

    def offer(self, ticket: Ticket) -> list[Ticket]:
        """Queue a request that has entered, until it is its turn."""
        ticket.stage, ticket.number = TicketState.waiting, next(self._clock)
        self._runs[ticket.uid].lines.setdefault(ticket.adapter, OrderedDict())[ticket] = None
        return self._admit()

    def end(self, ticket: Ticket) -> list[Ticket]:
        """Remove a request that has entered and is waiting, is running or was never offered. Call once per request."""
        run = self._runs[ticket.uid]
        run.present -= ticket.sequences
        if ticket.stage is TicketState.waiting:
            self._leave_line(run, ticket)
        elif ticket.stage is TicketState.running:
            run.running -= ticket.sequences
            self._running -= ticket.sequences
            self._release_slot(run, ticket.adapter)
        if not run.present and not run.limit:
            del self._runs[ticket.uid]
        return self._admit()

    def _release_slot(self, run: _Run, adapter: str | None) -> None:
        if adapter is None:
            return
        self._active[adapter] -= 1
        if not self._active[adapter]:
            del self._active[adapter], run.slots[adapter]
            run.served = next(self._clock)
            if adapter in run.lines:
                run.lines.move_to_end(adapter)

    def _leave_line(self, run: _Run, ticket: Ticket) -> None:
        line = run.lines[ticket.adapter]
        del line[ticket]
        if not line:
            del run.lines[ticket.adapter]

    def _admit(self) -> list[Ticket]:
        admitted = []
        while (ticket := self._next()) is not None:
            run = self._runs[ticket.uid]
            self._leave_line(run, ticket)
            run.running += ticket.sequences
            self._running += ticket.sequences
            run.started = next(self._clock)
            ticket.stage = TicketState.running
            if ticket.adapter is not None:
                if ticket.adapter not in self._active:
                    run.served = next(self._clock)
                    run.slots[ticket.adapter] = None
                self._active[ticket.adapter] = self._active.get(ticket.adapter, 0) + 1
            admitted.append(ticket)
        return admitted

    def _next(self) -> Ticket | None:
        if self._running >= self._capacity:
            return None
        able = [run for run in self._runs.values() if run.lines and run.running < run.limit]
        free = self._slots - len(self._active)
        reserved = self._are_reserved(free)
        waiting = [(run, head) for run in able if (head := self._without_slot(run)) is not None]
        entitled = [(run, head) for run, head in waiting if not run.slots or not reserved]
        draining = set(islice(self._active, max(0, len(entitled) - free)))
        if reserved:
            draining |= {next(iter(run.slots)) for run, _ in waiting if run.slots}
        heads = [(run, head) for run in able if (head := self._with_slot(run, draining)) is not None]
        if entitled and free > 0:
            heads.append(min(entitled, key=lambda found: (found[0].served, found[1].number)))
        first = min(heads, key=lambda found: (found[0].running, found[0].started, found[1].number), default=None)
        return first[1] if first is not None else None

    def _are_reserved(self, free: int) -> bool:
        """Return True if the free slots are reserved for runs without a slot."""
        runs = [run for run in self._runs.values() if run.limit]
        return len(runs) <= self._slots and free <= sum(not run.slots for run in runs)

    def _without_slot(self, run: _Run) -> Ticket | None:
        lines = (line for name, line in run.lines.items() if name is not None and name not in self._active)
        return next((next(iter(line)) for line in lines), None)

    def _with_slot(self, run: _Run, draining: set[str]) -> Ticket | None:
        names = (None, *(name for name in self._active if name not in draining))
        heads = [next(iter(run.lines[name])) for name in names if name in run.lines]
        ticket = min(heads, key=lambda head: head.number, default=None)
        older = self._without_slot(run)
        if ticket is not None and older is not None and older.number < ticket.number:
            return ticket if run.running + ticket.sequences < run.limit else None
        return ticket
