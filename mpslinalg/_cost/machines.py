"""Machines as the model knows them: published rates, and what a launch and a wait cost.

Sources. Cores and GB/s of the Apple chips: Apple's announcements of each, the largest of each size.
Clocks: M1 and M2 from philipturner/metal-benchmarks, M3 to M5 from hmc-tech.com's tables; a chip
that was not found there has the clock of its generation's nearest. A core has 128 lanes on both
makers' GPUs, so a rate is cores * 128 * 2 * clock. Of the published bandwidth an M4 reaches about
0.85 (100 of 120 GB/s: Huebner et al., "Apple vs. Oranges", arXiv 2502.05317). A launch that waits
for the one before, 5 us: 3.0 us on an M1 Max (pytorch#82707), 4.6 to 7.6 us an operator on an M1
Pro (pytorch#148219), 17 us on an M1 (kornia#4521). A launch and the wait for it, 270 us on an M1:
kornia#4521. The Python of a call and of a repeated launch: as measured on the H200's host.
"""

from dataclasses import dataclass

LANES = 128
# Of the published bandwidth of an Apple chip, what a copy reaches.
COPY_SHARE = 0.85


@dataclass(frozen=True)
class Machine:
    """Times in microseconds."""

    name: str
    cores: int
    ghz: float
    gb_per_s: float
    # From the end of a launch to the start of one that waits for it, on the GPU; the least and the
    # most of what was reported.
    launch: float = 5.0
    least_launch: float = 3.0
    most_launch: float = 17.0
    # Of the host: a call before its first launch, each launch, and a wait for the device.
    call: float = 24.0
    host: float = 3.0
    wait: float = 265.0
    # Launches from which on a program is repeated as one graph, at no cost of the host for each.
    graph: int | None = None

    @property
    def flops(self) -> float:
        """Float32 operations a microsecond, a multiply-add being two."""
        return self.cores * LANES * 2e3 * self.ghz

    @property
    def bytes(self) -> float:
        """Bytes a microsecond."""
        return self.gb_per_s * 1e3


# GB/s, launch, host and wait as measured there.
H200 = Machine(
    "H200", 132, 1.98, 4150, launch=3.0, least_launch=2.5, most_launch=4.0, wait=22.0, graph=100
)


def _apple(name: str, cores: int, ghz: float, published: float) -> Machine:
    return Machine(name, cores, ghz, COPY_SHARE * published)


MACHINES = {
    machine.name: machine
    for machine in (
        _apple("M1", 8, 1.278, 68),
        _apple("M1 Pro", 16, 1.296, 200),
        _apple("M1 Max", 32, 1.296, 400),
        _apple("M1 Ultra", 64, 1.296, 800),
        _apple("M2", 10, 1.398, 100),
        _apple("M2 Pro", 19, 1.398, 200),
        _apple("M2 Max", 38, 1.398, 400),
        _apple("M2 Ultra", 76, 1.398, 800),
        _apple("M3", 10, 1.398, 100),
        _apple("M3 Pro", 18, 1.398, 150),
        _apple("M3 Max", 40, 1.398, 400),
        _apple("M3 Ultra", 80, 1.398, 819),
        _apple("M4", 10, 1.47, 120),
        _apple("M4 Pro", 20, 1.678, 273),
        _apple("M4 Max", 40, 1.678, 546),
        _apple("M5", 10, 1.74, 153),
        _apple("M5 Pro", 20, 1.74, 307),
        _apple("M5 Max", 40, 1.74, 614),
    )
}
