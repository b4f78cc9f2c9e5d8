"""How many lanes and threads a launch takes: simdgroups have 32 lanes on every engine."""

LANES = 32


def whole(threads: int) -> int:
    """The threads of the simdgroups that hold this many."""
    return -(-threads // LANES) * LANES


def lanes(n: int, least: int = 4) -> int:
    """Lanes of the team that owns a matrix of n <= 32 rows; a simdgroup holds several."""
    width = least
    while width < n:
        width *= 2
    return width
