from . import common


class GatedDelta(common.suite("gated_delta")):
    pass
