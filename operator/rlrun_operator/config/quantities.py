"""Kubernetes quantities as integers in thousandths, so that sums and comparisons are exact."""

from decimal import ROUND_CEILING, Decimal

BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


def to_millis(quantity: str) -> int:
    """Convert a valid quantity, such as `500m`, `4` or `16Gi`, to thousandths, rounded up."""
    for suffix, factor in BINARY.items():
        if quantity.endswith(suffix):
            return _round_up(Decimal(quantity.removesuffix(suffix)) * factor)
    # `1E` has the suffix exa, `1E3` and `1e3` have an exponent.
    if quantity[-1] in DECIMAL:
        return _round_up(Decimal(quantity[:-1]).scaleb(DECIMAL[quantity[-1]]))
    return _round_up(Decimal(quantity))


def from_millis(millis: int) -> str:
    """Convert thousandths to a quantity. A whole number gets the largest of the suffixes Mi, Gi and Ti that divides it,
    if any; a fraction gets `m`.
    """
    whole, rest = divmod(millis, 1000)
    if rest:
        return f"{millis}m"
    for suffix in ("Ti", "Gi", "Mi"):
        if whole and whole % BINARY[suffix] == 0:
            return f"{whole // BINARY[suffix]}{suffix}"
    return str(whole)


def _round_up(value: Decimal) -> int:
    return int((value * 1000).to_integral_value(rounding=ROUND_CEILING))
