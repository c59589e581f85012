"""Reading by ranges: the number of requests, and damage."""

import random

import pytest
import zstandard
from rlrun.storage.samples.object_file import MAX_OBJECT_BYTES, SamplesDamaged, encode_samples
from rlrun.storage.samples.reader import TAIL_BYTES, OpenSamples, open_samples
from rlrun.storage.samples.record import SampleSplit

from tests.support.sample_records import URI, RangeObject, groups, with_index


def opened(stored: RangeObject) -> OpenSamples:
    return open_samples(stored.read, URI, 3, SampleSplit.train)


def test_a_list_takes_one_request_and_a_group_one_more() -> None:
    stored = RangeObject(encode_samples(3, SampleSplit.train, groups(64, 8)).data)
    found = opened(stored)
    assert stored.asked == [(None, TAIL_BYTES)]
    rows = list(found.index.pairs())
    assert len(rows) == 512
    assert rows[9][1].text == "olleh"
    assert rows[9][1].rewards == {"overlap": 0.5, "format": 1.0}
    group = found.index.groups[5]
    assert found.records(group) == groups(64, 8)[5]
    assert stored.asked[1:] == [(group.offset, group.size)]


def test_an_index_longer_than_the_first_request_takes_a_second_one() -> None:
    many = [[r.model_copy(update={"rollout": f"{random.Random(r.rollout).getrandbits(256):064x}"}) for r in group]
            for group in groups(500, 8)]  # fmt: skip
    stored = RangeObject(encode_samples(3, SampleSplit.train, many).data)
    assert len(opened(stored).index.groups) == 500
    assert [start for start, _ in stored.asked] == [None, None]


def test_an_object_without_an_index_is_read_as_a_whole_and_told() -> None:
    lines = b"".join(r.to_line() for group in groups() for r in group)
    stored = RangeObject(zstandard.compress(lines))
    found = opened(stored)
    assert "ends without an index" in str(found.problem)
    assert [g.group for g in found.index.groups] == ["g0", "g1", "g2"]
    assert [found.records(g) for g in found.index.groups] == groups()
    assert len(stored.asked) == 1, "a small object was read by the first request"


def test_a_damaged_group_leaves_the_others() -> None:
    encoded = encode_samples(3, SampleSplit.train, groups())
    one, two, three = encoded.index.groups
    data = bytearray(encoded.data)
    data[two.offset + 4 : two.offset + two.size] = bytes(two.size - 4)
    found = opened(RangeObject(bytes(data)))
    one, two, three = found.index.groups
    with pytest.raises(SamplesDamaged, match="group g1 cannot be read"):
        found.records(two)
    assert [found.records(one), found.records(three)] == [groups()[0], groups()[2]]


def test_a_damaged_index_is_replaced_by_reading_all() -> None:
    data = encode_samples(3, SampleSplit.train, groups()).data
    found = opened(RangeObject(with_index(data, lambda index: index[:20] + bytes(len(index) - 20))))
    assert [found.records(g) for g in found.index.groups] == groups()
    assert "is damaged" in str(found.problem)


@pytest.mark.parametrize("kept", [0, 3, 200, 400])
def test_an_object_that_is_cut_off_shows_what_is_left(kept: int) -> None:
    data = encode_samples(3, SampleSplit.train, groups()).data
    found = opened(RangeObject(data[:kept]))
    assert len(found.index.groups) < 3
    assert found.problem is not None


def test_a_group_without_texts_says_so() -> None:
    found = opened(RangeObject(encode_samples(3, SampleSplit.train, groups()).data))
    with pytest.raises(SamplesDamaged, match="are not stored"):
        found.records(found.index.groups[0].model_copy(update={"size": 0}))


def test_a_frame_beyond_the_limit_is_not_requested() -> None:
    stored = RangeObject(encode_samples(3, SampleSplit.train, groups()).data)
    found = opened(stored)
    with pytest.raises(SamplesDamaged, match="too large to be read"):
        found.records(found.index.groups[0].model_copy(update={"size": MAX_OBJECT_BYTES + 1}))
    assert len(stored.asked) == 1


def test_a_frame_beyond_the_end_is_damaged() -> None:
    found = opened(RangeObject(encode_samples(3, SampleSplit.train, groups()).data))
    with pytest.raises(SamplesDamaged, match="too short"):
        found.records(found.index.groups[0].model_copy(update={"size": 10**6}))
