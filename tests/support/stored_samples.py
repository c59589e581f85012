"""Stored rollouts of a run in the bucket of a test, as a run writes them."""

from collections.abc import Sequence

from rlrun.storage.layout import RunLayout, S3Uri, file_name, rollouts_name
from rlrun.storage.samples.object_file import encode_samples
from rlrun.storage.samples.record import SampleRecord, SampleSplit
from rlrun.storage.samples.summary import StepSamples, summarize
from rlrun.storage.store import Store


class StoredSamples:
    """Folder of a run."""

    def __init__(self, store: Store, root: S3Uri, namespace: str, uid: str) -> None:
        self._store = store
        self._layout = RunLayout.of(root.bucket, root.key, namespace, uid)
        self._lines: list[bytes] = []

    def add(
        self,
        step: int,
        records: Sequence[list[SampleRecord]],
        split: SampleSplit = SampleSplit.train,
        environment: str | None = None,
    ) -> StepSamples:
        """Write an object and its summary."""
        records = [[r.model_copy(update={"step": step, "split": split}) for r in group] for group in records]
        use = f"{split}-{file_name(environment)}" if environment else "" if split is SampleSplit.train else str(split)
        encoded = encode_samples(step, split, records)
        self.put(step, encoded.data, use)
        name = rollouts_name(step, use)
        summary = summarize(encoded.index, environment=environment, file=name, size=len(encoded.data), omitted=0)
        self.add_line(summary.model_dump_json(by_alias=True, exclude_none=True).encode())
        return summary

    def put(self, step: int, data: bytes, use: str = "") -> None:
        """Write an object without a summary."""
        self._store.put_bytes(self._layout.rollouts(step, use), data)

    def add_line(self, line: bytes) -> None:
        """Add a line to the file of summaries."""
        self._lines.append(line + b"\n")
        self._store.put_bytes(self._layout.rollout_summaries("part-0-00000"), b"".join(self._lines))

    def put_part(self, part: str, data: bytes) -> None:
        """Write a file of summaries."""
        self._store.put_bytes(self._layout.rollout_summaries(part), data)
