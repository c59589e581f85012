"""In-memory form of the objects that the server watches with informers.

It has the fields for lists, filters and sort orders, and the object as compressed JSON if that is small and memory
allows. Other objects are read again from the API server when needed.
"""

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from rlrun.api.base.schema import Schema
from rlrun.kube.informer import CachedObject, Informer, ObjectSource, identity_of
from rlrun.kube.kinds import ResourceKind
from rlrun.kube.objects import Obj
from typing_extensions import override

MAX_OBJECT_BYTES = 32 << 10
"""Maximum compressed size in bytes of an object that is kept in memory as a whole. 60 kB of JSON compress to 13 kB."""
MAX_KEPT_BYTES = 64 << 20
"""Maximum total compressed size in bytes of the objects of one kind that are kept in memory as a whole."""
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""Annotation of kubectl with a copy of the complete object."""

S = TypeVar("S", bound=Schema)


@dataclass(frozen=True, slots=True)
class KeptObject(CachedObject, Generic[S]):
    """One object, without managed fields and without the annotation LAST_APPLIED."""

    summary: S
    text: bytes
    """Summary as JSON, as it appears in lists."""

    @override
    def decode(self, data: bytes) -> Obj:
        return CachedObject.decode(self, zlib.decompress(data))


KeptObjects = Informer[KeptObject[S]]
"""Informer with all objects of one kind."""


def keep_object(obj: Obj, summarize: Callable[[Obj], S]) -> KeptObject[S]:
    """Return the stored form of an object. Raises the errors of `summarize`."""
    metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    if LAST_APPLIED in (metadata.get("annotations") or {}):
        metadata["annotations"] = {k: v for k, v in metadata["annotations"].items() if k != LAST_APPLIED}
    stripped = {**obj, "metadata": metadata}
    text = json.dumps(stripped).encode()
    summary, (uid, version) = summarize(stripped), identity_of(obj)
    return KeptObject(
        namespace=str(metadata.get("namespace") or ""),
        name=str(metadata["name"]),
        uid=uid,
        version=version,
        # Level 1 compresses 60 kB of JSON to 13 kB in 0.4 ms.
        data=zlib.compress(text, 1),
        size=len(text),
        labels=(),
        summary=summary,
        text=summary.model_dump_json(by_alias=True, exclude_none=True).encode(),
    )


def informer_of(source: ObjectSource, kind: ResourceKind, summarize: Callable[[Obj], S]) -> KeptObjects[S]:
    """Return an informer that keeps the objects of a kind as KeptObject, each with the summary from `summarize`."""
    return Informer(
        source,
        kind,
        lambda obj: keep_object(obj, summarize),
        max_object_bytes=MAX_OBJECT_BYTES,
        max_bytes=MAX_KEPT_BYTES,
    )
