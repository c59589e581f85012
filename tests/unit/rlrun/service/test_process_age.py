import time

from rlrun.service.process_age import process_age


def test_the_age_grows_with_the_time() -> None:
    began = time.monotonic()
    first = process_age()
    passed = process_age() - first
    assert first > 0.0
    assert 0.0 <= passed <= time.monotonic() - began + 0.02
