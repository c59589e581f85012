"""Every call that the operator makes, counted, and a rule that may break any of them.

The gate stands between the operator and the world: `FaultyTransport` and `FaultyBucket` announce each call before it
takes effect and after. A rule answers by raising, so the same position in a life can be broken in two ways: the call
never arrived, or its answer never came back.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError, EndpointConnectionError
from rlrun.kube.async_transport import AsyncTransport
from rlrun.kube.errors import ApiError
from rlrun.kube.requests import KubeRequest

from tests.support.fake_cluster import Crash

READS = frozenset({"get", "list", "log", "get_object", "head_object", "list_objects_v2", "list_multipart_uploads"})


@dataclass(frozen=True)
class Call:
    """One call by its position in the life of the run."""

    index: int
    where: str
    """cluster or s3."""
    name: str
    tick: int = 0
    """When it is made; the world does not change by itself within a tick."""

    @property
    def writes(self) -> bool:
        """Whether it may have an effect."""
        return self.name not in READS


class Rule:
    """Breaks nothing; the base of those that do."""

    def before(self, call: Call) -> None:
        """Raises where the call does not arrive."""

    def after(self, call: Call) -> None:
        """Raises where the call's answer is lost."""


@dataclass
class CrashAt(Rule):
    """The operator's process dies at one call, before it takes effect or after."""

    index: int
    after_effect: bool = False

    def before(self, call: Call) -> None:
        if call.index == self.index and not self.after_effect:
            raise Crash

    def after(self, call: Call) -> None:
        if call.index == self.index and self.after_effect:
            raise Crash


@dataclass
class CrashAfterWrite(Rule):
    """The process dies when its n-th write has taken effect."""

    n: int
    seen: int = 0
    struck: bool = False

    def after(self, call: Call) -> None:
        if not call.writes or self.struck:
            return
        if self.seen == self.n:
            self.struck = True
            raise Crash
        self.seen += 1


@dataclass
class CrashBeforeWriting(Rule):
    """The process dies before the first write of its n-th tick that writes: what it has read has changed nothing."""

    n: int
    seen: int = -1
    tick: int = -1
    struck: bool = False

    def before(self, call: Call) -> None:
        if not call.writes or call.tick == self.tick or self.struck:
            return
        self.tick, self.seen = call.tick, self.seen + 1
        if self.seen == self.n:
            self.struck = True
            raise Crash


@dataclass
class FailAt(Rule):
    """One call fails with an error that the server gives."""

    index: int
    where: str
    after_effect: bool = False
    error: Callable[[str], Exception] | None = None

    def before(self, call: Call) -> None:
        if call.index == self.index and call.where == self.where and not self.after_effect:
            raise self._error(call)

    def after(self, call: Call) -> None:
        if call.index == self.index and call.where == self.where and self.after_effect:
            raise self._error(call)

    def _error(self, call: Call) -> Exception:
        if self.error is not None:
            return self.error(call.name)
        return s3_500(call.name) if call.where == "s3" else ApiError(500, "InternalError", "etcd said no")


@dataclass
class Gate:
    """Counts the calls of one process and asks the rule about each."""

    rule: Rule = field(default_factory=Rule)
    calls: list[Call] = field(default_factory=list)
    dead: bool = False
    tick: int = 0

    def enter(self, where: str, name: str) -> Call:
        """Announces a call. Raises what the rule raises; a process that has crashed makes no further calls."""
        if self.dead:
            raise Crash
        call = Call(len(self.calls), where, name, self.tick)
        self.calls.append(call)
        self._ask(self.rule.before, call)
        return call

    def leave(self, call: Call) -> None:
        """Announces that the call has taken effect."""
        self._ask(self.rule.after, call)

    def _ask(self, question: Callable[[Call], None], call: Call) -> None:
        try:
            question(call)
        except Crash:
            self.dead = True
            raise


class FaultyTransport:
    """A transport to an API server whose every request goes through the gate, pages of a list one by one."""

    def __init__(self, inner: AsyncTransport, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    async def close(self) -> None:
        """Closes the connections."""
        await self._inner.close()

    async def send(self, request: KubeRequest) -> dict[str, Any]:
        """The answer, unless the gate breaks the request or its answer."""
        with self._announced(request):
            return await self._inner.send(request)

    @asynccontextmanager
    async def stream(self, request: KubeRequest) -> AsyncIterator[AsyncIterator[bytes]]:
        """The chunks of the answer, unless the gate breaks the request or its answer."""
        with self._announced(request):
            async with self._inner.stream(request) as chunks:
                yield chunks

    @contextmanager
    def _announced(self, request: KubeRequest) -> Iterator[None]:
        status = "_status" if request.subresource == "status" else ""
        call = self._gate.enter("cluster", request.verb.name.lower() + status)
        try:
            yield
        except ApiError:
            # "Not found" is an answer that can get lost as well.
            self._gate.leave(call)
            raise
        self._gate.leave(call)


class FaultyBucket:
    """An S3 client whose every request goes through the gate, pages of a listing one by one."""

    def __init__(self, inner: Any, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        if name == "get_paginator":
            return lambda operation: _Pages(self, operation)
        method = getattr(self._inner, name)
        if name in ("close", "exceptions"):
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            announced = self._gate.enter("s3", name)
            try:
                answer = method(*args, **kwargs)
            except ClientError:
                # "Not found" is an answer that can get lost as well.
                self._gate.leave(announced)
                raise
            self._gate.leave(announced)
            return answer

        return call


class _Pages:
    def __init__(self, bucket: FaultyBucket, operation: str) -> None:
        self._request = getattr(bucket, operation)

    def paginate(self, **arguments: Any) -> Any:
        while True:
            page = self._request(**arguments)
            yield page
            if not page.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]


def s3_500(operation: str) -> Exception:
    """Return the error of boto3 for a server that answers 500 to every attempt."""
    answer = {"Error": {"Code": "InternalError", "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": 500}}
    error: Exception = ClientError(answer, "".join(word.capitalize() for word in operation.split("_")))
    return error


def s3_silent(_: str) -> Exception:
    """Return the error of boto3 for an endpoint where no server listens."""
    error: Exception = EndpointConnectionError(endpoint_url="http://s3.test:8333")
    return error
