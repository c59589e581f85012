import pytest
from rlrun_operator.config.quantities import from_millis, to_millis


@pytest.mark.parametrize(
    ("quantity", "millis"),
    [
        ("4", 4000), ("500m", 500), ("0.5", 500), (".5", 500), ("1.", 1000), ("16Gi", 16 * 2**30 * 1000), ("1k", 10**6),
        ("1E", 10**21), ("1E3", 10**6), ("1e-3", 1), ("1n", 1), ("1500u", 2), ("+2", 2000), ("1.5Ki", 1536000),
    ],
)  # fmt: skip
def test_quantities_are_exact_and_rounded_up_below_a_thousandth(quantity: str, millis: int) -> None:
    assert to_millis(quantity) == millis


@pytest.mark.parametrize("quantity", ["0", "4", "2500m", "16Gi", "3Ti", "512Mi", "1023", "1048577"])
def test_a_written_quantity_is_read_as_the_same(quantity: str) -> None:
    assert from_millis(to_millis(quantity)) == quantity
