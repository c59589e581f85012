"""Bodies of requests for a step, and what is read from them."""

from collections.abc import Sequence

from rlrun.protocol.train_batch import BatchBody, BatchReader, Sample, TrainBatch


def body_of(samples: Sequence[Sample], batch_id: str = "") -> bytes:
    """Return a batch as it is sent."""
    return b"".join(BatchBody(TrainBatch(list(samples), batch_id)).pieces())


def read_body(body: bytes, announced: int | None = None) -> TrainBatch:
    """Return the batch of a whole body. Raises InputInvalid, and EOFError if it ends early or goes on."""
    reader, place = BatchReader(announced), 0
    while reader.wanted:
        part = body[place : place + reader.wanted]
        if len(part) < reader.wanted:
            raise EOFError(f"{reader.wanted} bytes are announced, and {len(part)} are left")
        place += len(part)
        reader.feed(part)
    if place < len(body):
        raise EOFError(f"{len(body) - place} bytes follow the batch")
    return reader.batch
