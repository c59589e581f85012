"""Cache of the objects of runs: each answer of the API server is kept until an event or an own write changes it.

Nothing here asks the API server. An answer is kept only for kinds whose changes are watched at the moment, and for
KEPT_SECONDS after it was read or compared with a list: a watch may lose an event. Versions decide what is newer,
because events of own writes arrive after the answers to them (resourceVersions of one kind compare as numbers:
Kubernetes enhancement 5504).
"""

import asyncio
import itertools
import json
import logging
import random
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rlrun.constants import RUN_LABEL, RUN_UID_LABEL
from rlrun.kube.kinds import POD, SECRET, ResourceKind
from rlrun.kube.objects import Labels, Obj, label
from rlrun.kube.requests import label_selector

from rlrun_operator.cache.object_parts import used_parts

log = logging.getLogger(__name__)

KEPT_SECONDS = 1200.0
"""Time for which an answer is kept, give or take a fifth, so that not all are read again at once. Comparison with lists
prolongs it (`cache/confirmation.py`), but not that of Secrets, which are read by name only."""

LARGEST_ANSWER = 512 << 10
"""Bytes of an answer that is kept, compressed. A run of thousand checkpoints has less. Larger ones are read each time:
users may give a run's labels to large objects of their own."""

RunName = tuple[str, str]
"""Namespace and name of a run."""


@dataclass(frozen=True)
class Question:
    """A read of one object by its name, or of all objects with some labels."""

    kind: ResourceKind
    namespace: str | None
    selector: str

    @classmethod
    def one(cls, kind: ResourceKind, namespace: str | None, name: str) -> "Question":
        """Return the read of one object."""
        return cls(kind, namespace, f"name={name}")

    @classmethod
    def of_labels(cls, kind: ResourceKind, namespace: str | None, labels: Labels | None) -> "Question":
        """Return the read of a list."""
        return cls(kind, namespace, label_selector(labels or {}))


_Place = tuple[ResourceKind, str | None, str]
"""Kind, namespace and name of an object."""


@dataclass
class PendingRead:
    """A read that the API server has not answered yet."""

    began: int
    """Moment at which it began, from `ObjectCache.moment`."""
    is_outdated: bool = False
    """True if something has changed since it began, so that its answer may lack the change."""


@dataclass(slots=True)
class _Answer:
    # A thousand runs have 11,000 of them.
    data: bytes
    """The objects as compressed JSON: this takes far less memory than dictionaries, and readers cannot modify it."""
    versions: dict[str, int]
    """Version of each object by its uid."""
    places: "set[_Place]"
    """Kind, namespace and name of each of its objects."""
    began: int
    """Moment at which the read began. What changed before is in the answer."""
    watched_since: int
    """Moment since which no event was missed: the time of the read, or of the list that it was compared with."""
    until: float
    is_in_use: bool = False
    """True if a reconcile has asked for it since it was read or compared with a list."""
    unconfirmed: frozenset[str] = frozenset()
    """Uids of objects that this process has written and whose event has not arrived. Another writer may have been
    first."""

    def objects(self) -> list[Obj]:
        """Return the objects."""
        decoded: list[Obj] = json.loads(zlib.decompress(self.data))
        return decoded


class ObjectCache:
    """Answers by question. Not thread-safe: use it from one event loop only."""

    def __init__(
        self, clock: Callable[[], float], kept_seconds: float = KEPT_SECONDS, spread: Callable[[], float] | None = None
    ) -> None:
        """`spread` returns the factor of `kept_seconds` for the next answer."""
        self._clock = clock
        self._kept_seconds = kept_seconds
        self._spread = spread or (lambda: random.uniform(0.8, 1.2))
        self._answers: defaultdict[ResourceKind, dict[Question, _Answer]] = defaultdict(dict)
        self._with_object: defaultdict[_Place, set[Question]] = defaultdict(set)
        """Kept answers that have the object."""
        self._of_run: defaultdict[RunName, set[Question]] = defaultdict(set)
        self._pending: defaultdict[Question, list[PendingRead]] = defaultdict(list)
        self._watched: set[tuple[ResourceKind, str | None]] = set()
        self._opened = asyncio.Event()
        """Set when a watch opens."""
        self._moments = itertools.count()
        self._writing: Counter[_Place] = Counter()
        """Objects about which an own write is under way."""
        self._waiting: defaultdict[_Place, list[tuple[int | None, Callable[[], None]]]] = defaultdict(list)
        """Versions of events that wait for the answers to these writes, and their actions."""
        self._own_versions: defaultdict[_Place, set[int]] = defaultdict(set)
        """Versions of the answers to these writes."""

    def __len__(self) -> int:
        """Return the number of kept answers."""
        return sum(map(len, self._answers.values()))

    def moment(self) -> int:
        """Return a number for this moment: later ones are larger. Two times of a clock may be equal."""
        return next(self._moments)

    def size(self) -> int:
        """Return the bytes of all kept answers."""
        return sum(len(a.data) for answers in self._answers.values() for a in answers.values())

    # --- watches ------------------------------------------------------------------------------------------------------

    def watch_opened(self, kind: ResourceKind, namespace: str | None, objects: Iterable[Obj]) -> None:
        """Keep answers of the kind from now on, in one namespace or in all: a watch reports changes.

        `objects`: metadata of all objects that are watched, as they were when the watch began. Earlier answers with
        other objects, or with other versions of these, are forgotten: something has changed meanwhile. Older versions
        count too: the API server's data may come from a backup.
        """
        self._outdate_reads(kind, namespace)
        kept = {q: answer for q, answer in self._answers[kind].items() if namespace in (None, q.namespace)}
        expected: defaultdict[Question, dict[str, int | None]] = defaultdict(dict)
        for obj in objects if kept else ():
            for question in _questions_about(kind, obj):
                if question in kept:
                    expected[question][str(obj["metadata"].get("uid", ""))] = _version(obj)
        for question, answer in kept.items():
            if answer.unconfirmed or answer.versions != expected.get(question, {}):
                self._drop(question)
            answer.watched_since = self.moment()
        if kind == POD:
            self._forget_secrets(namespace)
        self._watched.add((kind, namespace))
        self._opened.set()

    def _forget_secrets(self, namespace: str | None) -> None:
        """Forget the Secrets of runs without an answer about their pods.

        Secrets are not watched. One that is missing shows at the pods that need it.
        """
        self._outdate_reads(SECRET, namespace)
        for run in self._of_run:
            if namespace in (None, run[0]) and not self.has_answer(POD, run):
                self._forget_secrets_of(run)

    def has_answer_about(self, kind: ResourceKind, obj: Obj) -> bool:
        """Return whether an answer is kept that has the object, or lacks it because it is new."""
        return any(question in self._answers[kind] for question in _questions_about(kind, obj))

    def watch_closed(self, kind: ResourceKind, namespace: str | None = None) -> None:
        """Use and keep no answers of the kind until its watch is open again."""
        self._watched.discard((kind, namespace))

    def is_watched(self, kind: ResourceKind, namespace: str | None) -> bool:
        """Return whether answers about the kind in this namespace, or in all, are kept."""
        return not self._watched.isdisjoint({(kind, None), (kind, namespace)})

    async def until_watched(self, kind: ResourceKind, namespace: str | None) -> None:
        """Wait until answers about the kind are kept."""
        while not self.is_watched(kind, namespace):
            self._opened.clear()
            await self._opened.wait()

    def _outdate_reads(self, kind: ResourceKind, namespace: str | None) -> None:
        for question, reads in self._pending.items():
            if question.kind == kind and namespace in (None, question.namespace):
                _outdate(reads)

    def has_answer(self, kind: ResourceKind, run: RunName) -> bool:
        """Return whether reconciles of the run have read something of the kind, and all of it is kept."""
        asked = [question for question in self._of_run.get(run, ()) if question.kind == kind]
        return bool(asked) and all(question in self._answers[kind] for question in asked)

    def forget_missing(self, kind: ResourceKind, objects: Iterable[Obj]) -> None:
        """Forget the answers with objects that a new list of all objects of the kind lacks: an event was missed.

        `changed` compares with those that are in it.
        """
        uids = {str(obj["metadata"].get("uid", "")) for obj in objects}
        for question in [q for q, answer in self._answers[kind].items() if not answer.versions.keys() <= uids]:
            self._drop(question)

    def questions(self, kind: ResourceKind, namespace: str | None, key: str) -> frozenset[Question]:
        """Return the lists by this label, in one or in all namespaces, whose answers are kept."""
        return frozenset(
            question
            for question in self._answers[kind]
            if namespace in (None, question.namespace) and question.selector.startswith(f"{key}=")
        )

    def time(self) -> float:
        """Return the time of the cache's clock, for `compare`."""
        return self._clock()

    def compare(self, question: Question, versions: Mapping[str, int], listed_at: float) -> None:
        """Keep an answer for longer if a list has found the same objects in the same versions, or else forget it.

        `versions`: by uid, of the objects in the list that answer the question. `listed_at`: time before the list was
        read. An answer that no reconcile has asked for since it was read or compared is not kept for longer. One with a
        newer version of an object stays: it has changed after the list.
        """
        answer = self._answers[question.kind].get(question)
        if answer is None:
            return
        if answer.versions == versions:
            if answer.is_in_use:
                answer.until = max(answer.until, self._expiry(listed_at))
            answer.is_in_use = False
        elif not any(answer.versions.get(uid, 0) > version for uid, version in versions.items()):
            self._drop(question)
            if question.kind == POD:
                self._forget_secrets_of((str(question.namespace), question.selector.partition("=")[2]))

    def _expiry(self, read_at: float) -> float:
        """Return the time until which an answer is kept. Differs from call to call."""
        return read_at + self._kept_seconds * self._spread()

    def _forget_secrets_of(self, run: RunName) -> None:
        for question in [q for q in self._of_run.get(run, ()) if q.kind == SECRET]:
            self._drop(question)

    def drop_expired(self) -> None:
        """Drop expired answers that no reconcile has requested since."""
        now = self._clock()
        for answers in self._answers.values():
            for question in [q for q, answer in answers.items() if now >= answer.until]:
                self._drop(question)

    def changed(self, kind: ResourceKind, obj: Mapping[str, Any], *, deleted: bool = False) -> bool:
        """Apply an event. Returns False if this version of the object is already known."""
        uid, version = str((obj.get("metadata") or {}).get("uid", "")), _version(obj)
        is_known = has_forgotten = False
        for question in {*self._affected_questions(kind, obj), *self._answers_with(kind, obj, uid)}:
            _outdate(self._pending.get(question, ()))
            answer = self._answers[question.kind].get(question)
            if answer is None:
                continue
            known = None if deleted or question.kind != kind else answer.versions.get(uid)
            if known is not None and version is not None and known >= version:
                is_known = True
                if known == version:
                    answer.unconfirmed -= {uid}
                continue
            has_forgotten = True
            self._drop(question)
        return has_forgotten or not is_known

    # --- reads --------------------------------------------------------------------------------------------------------

    def find(self, question: Question, run: RunName, read_after: int | None = None) -> list[Obj] | None:
        """Return a copy of the kept answer for a reconcile of the run, or None.

        `read_after`: None also if the answer was not read after this moment.
        """
        answer = self._answers[question.kind].get(question)
        if answer is None or not self.is_watched(question.kind, question.namespace):
            return None
        if self._clock() >= answer.until or (read_after is not None and answer.began < read_after):
            self._drop(question)
            return None
        # Another run may have read it. `forget_run` must forget it for this one, too.
        self._of_run[run].add(question)
        answer.is_in_use = True
        return answer.objects()

    @contextmanager
    def reading(self, question: Question) -> Iterator[PendingRead]:
        """Context of a read; yields the state that `keep` needs."""
        read = PendingRead(self.moment())
        self._pending[question].append(read)
        try:
            yield read
        finally:
            self._pending[question].remove(read)
            if not self._pending[question]:
                del self._pending[question]

    def keep(self, question: Question, read: PendingRead, objects: Iterable[Obj], run: RunName) -> None:
        """Keep the answer to a read for a run, unless something changed during the read."""
        stripped = [used_parts(question.kind, obj) for obj in objects]
        versions = dict(map(listed_version, stripped))
        if not self.is_watched(question.kind, question.namespace) or read.is_outdated:
            earlier = self._answers[question.kind].get(question)
            if earlier is not None and earlier.versions != versions:
                # A reconcile has seen what may be gone again when the watch opens.
                self._drop(question)
            return
        until = self._expiry(self._clock())
        places = {_place(question.kind, o["metadata"]) for o in stripped}
        self._drop(question)
        data = _pack(stripped)
        if len(data) > LARGEST_ANSWER:
            return
        self._answers[question.kind][question] = _Answer(data, versions, places, read.began, read.began, until)
        for place in places:
            self._with_object[place].add(question)
        self._of_run[run].add(question)

    def keep_event(self, kind: ResourceKind, obj: Obj, run: RunName) -> None:
        """Keep the object of an event as the answer to a read of it by its name."""
        metadata = obj["metadata"]
        question = Question.one(kind, metadata.get("namespace"), metadata["name"])
        self.keep(question, PendingRead(self.moment()), [obj], run)

    def read_at(self, question: Question) -> int | None:
        """Return the moment at which the read of the kept answer began, or None without one."""
        answer = self._answers[question.kind].get(question)
        return None if answer is None else answer.began

    def forget_run(self, run: RunName) -> None:
        """Forget all answers for the run: they are not needed, or must not be older than this moment."""
        for question in self._of_run.pop(run, ()):
            self._drop(question)

    # --- own writes ---------------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self, kind: ResourceKind, namespace: str | None, name: str) -> Iterator[None]:
        """Hold back what `after_own_write` is given about the object, until the context ends."""
        place = _place(kind, {"namespace": namespace, "name": name})
        self._writing[place] += 1
        try:
            yield
        finally:
            self._writing[place] -= 1
            if not self._writing[place]:
                del self._writing[place]
                own = self._own_versions.pop(place, set())
                for version, action in self._waiting.pop(place, ()):
                    if version not in own:
                        # A change by others. The answer to the own write is newer and must not hide it.
                        self.forget_object(*place)
                    try:
                        action()
                    except Exception:
                        log.exception("Could not handle an event of %s %s", kind.kind, name)

    def after_own_write(self, kind: ResourceKind, obj: Mapping[str, Any], action: Callable[[], None]) -> None:
        """Call `action`: at once, or when the answer to an own write of the object has arrived.

        The event of a write often comes before its answer. Without the answer it seems to be a change by others.
        """
        place = _place(kind, obj.get("metadata") or {})
        if place in self._writing and not self.knows(kind, obj):
            self._waiting[place].append((_version(obj), action))
        else:
            action()

    def knows(self, kind: ResourceKind, obj: Mapping[str, Any]) -> bool:
        """Return whether a kept answer has this version of the object, or a newer one."""
        uid, version = str((obj.get("metadata") or {}).get("uid", "")), _version(obj)
        known = (self._answers[kind][question].versions[uid] for question in self._answers_with(kind, obj, uid))
        return version is not None and any(found >= version for found in known)

    def store_written(self, kind: ResourceKind, obj: Obj, began: int) -> None:
        """Store the API server's answer to a write by this process in the kept answers. `began`: moment before the
        request."""
        metadata, version = obj.get("metadata") or {}, _version(obj)
        place = _place(kind, metadata)
        if version is not None and place in self._writing:
            self._own_versions[place].add(version)
        if metadata.get("deletionTimestamp") or version is None:
            # It may be gone already: a finalizer less lets the API server remove it.
            self.changed(kind, obj, deleted=True)
            self.forget_object(kind, metadata.get("namespace"), str(metadata.get("name", "")))
            return
        for question in self._affected_questions(kind, obj):
            _outdate(self._pending.get(question, ()))
            answer = self._answers[question.kind].get(question)
            if answer is None or question.kind != kind:
                continue
            if str(metadata.get("uid", "")) in answer.versions:
                self._put(answer, used_parts(kind, obj))
            elif answer.watched_since < began:
                # New, and no event about it has arrived: that would have ended the answer.
                self._add(question, answer, obj)
            else:
                # The read had its answer before the write, or after it: then the object is gone already.
                self._drop(question)

    def forget_object(self, kind: ResourceKind, namespace: str | None, name: str) -> None:
        """Forget all answers about the object: an own write has deleted it, has failed, or its outcome is unknown."""
        place = _place(kind, {"namespace": namespace, "name": name})
        for question, reads in self._pending.items():
            if question.kind == kind and question.namespace in (None, place[1]):
                _outdate(reads)
        for question in {Question.one(*place), *self._with_object.get(place, ())}:
            self._drop(question)

    def _drop(self, question: Question) -> None:
        answer = self._answers[question.kind].pop(question, None)
        for place in () if answer is None else answer.places:
            questions = self._with_object[place]
            questions.discard(question)
            if not questions:
                del self._with_object[place]

    def _add(self, question: Question, answer: _Answer, obj: Obj) -> None:
        place = _place(question.kind, obj["metadata"])
        uid = str(obj["metadata"].get("uid", ""))
        answer.versions[uid] = _version(obj) or 0
        answer.unconfirmed |= {uid}
        answer.places.add(place)
        answer.data = _pack([*answer.objects(), used_parts(question.kind, obj)])
        self._with_object[place].add(question)

    def _put(self, answer: _Answer, obj: Obj) -> None:
        uid, version = str(obj["metadata"]["uid"]), _version(obj) or 0
        if answer.versions.get(uid, -1) > version:
            return
        objects = answer.objects()
        if answer.versions.get(uid) != version:
            answer.unconfirmed |= {uid}
        answer.versions[uid] = version
        answer.data = _pack([obj if known["metadata"].get("uid") == uid else known for known in objects])

    def _answers_with(self, kind: ResourceKind, obj: Mapping[str, Any], uid: str) -> Iterator[Question]:
        """Return the kept answers that contain the object, even under labels that it no longer has."""
        for question in self._with_object.get(_place(kind, obj.get("metadata") or {}), ()):
            if uid in self._answers[kind][question].versions:
                yield question

    def _affected_questions(self, kind: ResourceKind, obj: Mapping[str, Any]) -> Iterator[Question]:
        yield from _questions_about(kind, obj)
        if kind == POD:
            # Secrets are not watched. One that is missing shows at the pods that need it.
            run = (str((obj.get("metadata") or {}).get("namespace")), label(obj, RUN_LABEL))
            yield from [q for q in self._of_run.get(run, ()) if q.kind == SECRET]


def _questions_about(kind: ResourceKind, obj: Mapping[str, Any]) -> Iterator[Question]:
    """Return the reads whose answers have the object, by its name and its labels."""
    metadata = obj.get("metadata") or {}
    namespace = metadata.get("namespace") if kind.namespaced else None
    yield Question.one(kind, namespace, str(metadata.get("name", "")))
    yield Question.of_labels(kind, namespace, None)
    for key in (RUN_LABEL, RUN_UID_LABEL):
        if label(obj, key):
            yield Question.of_labels(kind, namespace, {key: label(obj, key)})


def _place(kind: ResourceKind, metadata: Mapping[str, Any]) -> _Place:
    return kind, metadata.get("namespace") if kind.namespaced else None, str(metadata.get("name", ""))


def _version(obj: Mapping[str, Any]) -> int | None:
    text = str((obj.get("metadata") or {}).get("resourceVersion", ""))
    return int(text) if text.isdigit() else None


def listed_version(obj: Obj) -> tuple[str, int]:
    """Return uid and version of an object, as answers have them."""
    return str(obj["metadata"].get("uid", "")), _version(obj) or 0


def _pack(objects: list[Obj]) -> bytes:
    # Level 1 makes JSON a fifth of its length.
    return zlib.compress(json.dumps(objects).encode(), 1)


def _outdate(reads: Iterable[PendingRead]) -> None:
    for read in reads:
        read.is_outdated = True
