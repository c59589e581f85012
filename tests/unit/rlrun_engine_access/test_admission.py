"""Admission without a clock of its own: tickets, and simulations of an engine that never schedules a third adapter."""

import random
from collections import Counter, defaultdict

import pytest
from rlrun_engine_access.admission import QUEUE_FACTOR, Admission, QueueFull, Ticket, TicketState

SLOTS = 2
LONGEST = 60


def admission(slots: int = SLOTS, capacity: int = 1_000, **limits: int) -> Admission:
    made = Admission(slots, capacity)
    made.set_limits(limits)
    return made


def ask(gate: Admission, uid: str, adapter: str | None = "", sequences: int = 1) -> Ticket:
    """Offer a request for the run's only adapter, another one, or the base model (None)."""
    ticket = Ticket(uid, adapter if adapter is None else f"{uid}_{adapter}", sequences)
    gate.enter(ticket)
    gate.offer(ticket)
    return ticket


def is_running(*tickets: Ticket) -> list[bool]:
    return [ticket.stage is TicketState.running for ticket in tickets]


def test_adapters_get_slots_while_there_are_any() -> None:
    gate = admission(a=9, b=9, c=9)
    assert is_running(ask(gate, "a"), ask(gate, "b"), ask(gate, "a"), ask(gate, "c")) == [True, True, True, False]


def test_requests_for_the_base_model_need_no_slot() -> None:
    gate = admission(slots=1, a=9, b=9)
    tickets = [ask(gate, "a"), ask(gate, "b"), ask(gate, "b", None), ask(gate, "a", None)]
    assert is_running(*tickets) == [True, False, True, True]


def test_the_adapter_with_the_oldest_slot_drains_for_one_that_waits() -> None:
    gate = admission(a=9, b=9, c=9)
    first, second = ask(gate, "a"), ask(gate, "b")
    waiting = ask(gate, "c")
    later = ask(gate, "a"), ask(gate, "b")
    assert is_running(waiting, *later) == [False, False, True]
    assert gate.end(first) == [waiting]
    assert is_running(*later) == [False, True], "the adapter that drained does not take its slot again"
    assert is_running(ask(gate, "b")) == [False], "now the second adapter drains for the first"
    gate.end(second)
    assert gate.end(later[1])[0] is later[0]


def test_an_adapter_continues_if_the_waiting_request_ends() -> None:
    gate = admission(a=9, b=9, c=9)
    ask(gate, "a"), ask(gate, "b")
    waiting, later = ask(gate, "c"), ask(gate, "a")
    assert gate.end(waiting) == [later]


def test_a_run_at_its_limit_lets_nobody_drain() -> None:
    gate = admission(a=9, b=9, c=1)
    ask(gate, "c", None), ask(gate, "a"), ask(gate, "b")
    ask(gate, "c")
    assert is_running(ask(gate, "a")) == [True]


def test_a_run_with_many_adapters_gets_one_slot_per_turn() -> None:
    gate = admission(a=99, b=99, c=99)
    first = ask(gate, "a"), ask(gate, "b")
    many = [ask(gate, "c", str(number)) for number in range(20)]
    assert is_running(ask(gate, "b")) == [True], "one run waits, so one adapter drains"
    later = ask(gate, "a")
    gate.end(first[0])
    assert is_running(*many) == [True] + [False] * 19
    gate.end(many[0])
    assert is_running(later, *many[1:]) == [True] + [False] * 19, "it is the turn of a"


def test_within_a_run_no_request_is_overtaken_for_ever() -> None:
    gate = admission(slots=1, a=1)
    running = ask(gate, "a", "1")
    waiting = [ask(gate, "a", name) for name in ("2", None, "1", "2")]
    order = []
    while started := gate.end(running):
        (running,) = started
        order.append(running)
    assert order == waiting


def test_a_run_has_a_bounded_number_of_requests() -> None:
    gate = admission(a=3, b=1)
    tickets = [ask(gate, "a") for _ in range(3 * (1 + QUEUE_FACTOR))]
    assert sum(is_running(*tickets)) == 3
    for _ in range(10_000):
        with pytest.raises(QueueFull):
            ask(gate, "a")
    assert is_running(ask(gate, "b")) == [True], "another run is not affected"
    gate.end(tickets[-1])
    ask(gate, "a")


def test_a_free_slot_lets_no_request_overtake_older_ones_of_its_run() -> None:
    gate = admission(a=2)
    ask(gate, "a", "1")
    base = ask(gate, "a", None)
    older, younger = ask(gate, "a", "1"), ask(gate, "a", "2")
    assert gate.end(base) == [older]
    assert gate.end(older) == [younger]


def test_a_request_that_is_still_received_may_end() -> None:
    gate = admission(a=1)
    ticket = Ticket("a", "a_")
    gate.enter(ticket)
    assert gate.end(ticket) == []
    assert is_running(ask(gate, "a")) == [True]


def test_a_run_with_many_adapters_leaves_a_slot_for_each_other_run() -> None:
    gate = admission(slots=6, probe=16, a=256, b=256)
    many = [ask(gate, "a", str(number)) for number in range(6)]
    assert is_running(*many) == [True] * 4 + [False] * 2
    assert is_running(ask(gate, "b"), ask(gate, "probe")) == [True, True]
    assert is_running(ask(gate, "b", "2")) == [False], "all slots are in use"


def test_a_run_without_free_slots_drains_its_own_oldest_adapter() -> None:
    gate = admission(slots=6, probe=16, a=256, b=256)
    other = ask(gate, "b")
    running = [ask(gate, "a", str(number)) for number in range(4)]
    waiting = ask(gate, "a", "new")
    again = [ask(gate, "a", str(number)) for number in range(4)]
    assert is_running(waiting, *again) == [False, False, True, True, True]
    assert is_running(ask(gate, "b")) == [True], "the other run's older adapter does not drain"
    assert gate.end(running[0]) == [waiting]
    assert gate.end(other) == []


def test_reserved_slots_become_free_with_the_runs() -> None:
    gate = admission(slots=3, a=9, b=9, c=9)
    tickets = [ask(gate, "a", str(number)) for number in range(3)]
    assert is_running(*tickets) == [True, False, False]
    assert gate.set_limits({"a": 9, "b": 9})[1] == [tickets[1]]
    assert gate.set_limits({"a": 9})[1] == [tickets[2]]


def test_with_more_runs_than_slots_no_slot_is_reserved() -> None:
    gate = admission(slots=2, a=9, b=9, c=9)
    assert is_running(ask(gate, "a", "1"), ask(gate, "a", "2")) == [True, True]


def test_the_next_request_is_of_the_run_with_the_fewest_requests() -> None:
    gate = admission(slots=6, capacity=10, a=8192, b=8192)
    many, few = [ask(gate, "a") for _ in range(100)], [ask(gate, "b") for _ in range(2)]
    assert sum(is_running(*many)) == 10
    assert is_running(*few) == [False, False]
    assert [gate.end(ticket) for ticket in many[:2]] == [[few[0]], [few[1]]]
    assert gate.end(few[0]) == [many[10]]


def test_requests_count_by_their_sequences() -> None:
    gate = admission(slots=6, capacity=10, a=8, b=8192)
    wide = [ask(gate, "a", sequences=8) for _ in range(5)]
    assert is_running(*wide) == [True, False, False, False, False], "at the limit of the run"
    with pytest.raises(QueueFull):
        ask(gate, "a", sequences=8)
    narrow = [ask(gate, "b") for _ in range(3)]
    assert is_running(*narrow) == [True, True, False], "at the capacity of the engine"
    assert gate.end(wide[0]) == [wide[1]], "the run with fewer sequences is the first"
    assert gate.end(narrow[0]) == [narrow[2]]
    assert gate.end(wide[1]) == [wide[2]]


def test_runs_with_as_many_requests_take_turns() -> None:
    gate = admission(slots=0, capacity=1, a=9, b=9, c=9)
    running = ask(gate, "a", None)
    for _ in range(3):
        for uid in "abc":
            ask(gate, uid, None)
    turns = []
    while started := gate.end(running):
        (running,) = started
        turns.append(running.uid)
    assert turns == ["b", "c", "a"] * 3


def test_runs_may_leave_and_come_back() -> None:
    gate = admission(a=1, b=1)
    running, waiting = ask(gate, "a"), ask(gate, "a")
    assert gate.set_limits({"b": 2}) == ([waiting], [])
    gate.end(running)
    assert is_running(waiting) == [False], "the run has left"
    gate.end(waiting)
    with pytest.raises(KeyError):
        ask(gate, "a")
    gate.set_limits({"a": 2, "b": 2})
    tickets = [ask(gate, "a") for _ in range(3)]
    assert is_running(*tickets) == [True, True, False]
    assert gate.set_limits({"a": 3}) == ([], [tickets[2]]), "a higher limit has an effect at once"


class Simulation:
    """Engine and clients. Each client keeps a number of requests, of an adapter or of the base model, in the gate."""

    def __init__(self, gate: Admission, rng: random.Random) -> None:
        self.gate = gate
        self.time = 0
        self.waits: defaultdict[str, list[int]] = defaultdict(list)
        self._rng = rng
        self._begins: dict[Ticket, int] = {}
        self._ends: dict[Ticket, int] = {}

    def ask(self, uid: str, adapter: str | None) -> None:
        ticket = Ticket(uid, adapter)
        self.gate.enter(ticket)
        self._begins[ticket] = self.time
        self._start(self.gate.offer(ticket))

    def step(self) -> list[Ticket]:
        self.time += 1
        ended = [ticket for ticket, end in self._ends.items() if end <= self.time]
        for ticket in ended:
            del self._ends[ticket]
            self._start(self.gate.end(ticket))
        return ended

    def leave(self) -> list[Ticket]:
        impatient = [ticket for ticket in self._begins if self._rng.random() < 0.02]
        left = []
        for ticket in impatient:
            if self._begins.pop(ticket, None) is not None:
                left.append(ticket)
                self._start(self.gate.end(ticket))
        return left

    def _start(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            self.waits[ticket.uid].append(self.time - self._begins.pop(ticket))
            self._ends[ticket] = self.time + self._rng.randint(10, LONGEST)
        adapters = {ticket.adapter for ticket in self._ends} - {None}
        assert len(adapters) <= self.gate._slots
        assert len(self._ends) <= self.gate._capacity
        assert all(count <= self.gate._runs[uid].limit for uid, count in Counter(t.uid for t in self._ends).items())

    def oldest_wait(self) -> int:
        return max((self.time - begin for begin in self._begins.values()), default=0)

    def end(self) -> None:
        while self._ends:
            self.step()
        assert not self._begins
        assert not any(run.present or run.running or run.lines for run in self.gate._runs.values())
        assert not self.gate._active
        assert not any(run.slots for run in self.gate._runs.values())
        assert not self.gate._running


def test_nobody_without_a_slot_waits_longer_than_the_longest_response() -> None:
    simulation = Simulation(admission(a=64, b=64, c=64), random.Random(0))
    flood, live = {"a": 30, "b": 30}, Counter[str]()
    for _ in range(5_000):
        for uid, wanted in {**flood, "c": 1}.items():
            for _ in range(wanted - live[uid]):
                simulation.ask(uid, f"{uid}_")
                live[uid] += 1
        for ticket in simulation.step():
            live[ticket.uid] -= 1
        # Requests that wait while their own adapter drains wait for another adapter after that.
        assert simulation.oldest_wait() <= 2 * LONGEST
    assert len(simulation.waits["c"]) > 50
    assert max(simulation.waits["c"]) <= LONGEST
    simulation.end()


def test_adapters_of_a_flood_delay_no_other_run_and_one_another_by_the_longest_response() -> None:
    """Four adapters of a always have requests, which the limit of a never holds back."""
    simulation = Simulation(admission(slots=6, probe=16, a=256, b=64), random.Random(0))
    flood = {**{f"a_{number}": 8 for number in range(4)}, "b_1": 4, "b_2": 4}
    live = Counter[str | None]()
    for turn in range(5_000):
        # The fifth adapter of a has a request at a time, b and the probe have some now and then.
        wanted = {**flood, "a_new": 1} | ({"b_3": 1, "probe_": 1} if turn % 200 < 5 else {})
        for adapter, number in wanted.items():
            for _ in range(number - live[adapter]):
                simulation.ask(adapter.partition("_")[0], adapter)
                live[adapter] += 1
        for ticket in simulation.step():
            live[ticket.adapter] -= 1
        # Requests whose adapter drains wait for another adapter after that.
        assert simulation.oldest_wait() <= 3 * LONGEST
    assert max(simulation.waits["probe"]) == 0
    assert len(simulation.waits["probe"]) > 20
    simulation.end()


@pytest.mark.parametrize("seed", range(20))
def test_every_request_gets_its_turn(seed: int) -> None:
    rng = random.Random(seed)
    limits = {uid: rng.choice([1, 2, 8]) for uid in "abcde"}
    slots, capacity = rng.choice([1, 2, 3, 5, 8]), rng.choice([2, 8, 1_000])
    simulation = Simulation(admission(slots, capacity, **limits), rng)
    live = Counter[str]()
    for _ in range(1_500):
        for uid, limit in limits.items():
            while live[uid] < 2 * limit:
                simulation.ask(uid, rng.choice([None, *(f"{uid}_{number}" for number in range(3))]))
                live[uid] += 1
        for ticket in [*simulation.step(), *simulation.leave()]:
            live[ticket.uid] -= 1
        # Each of a run's requests before this one may need a turn, for which each run can be waited for.
        assert simulation.oldest_wait() <= 16 * len(limits) * LONGEST
    assert all(simulation.waits[uid] for uid in limits)
    simulation.end()
