from . import common


class LU(common.suite("lu")):
    pass
