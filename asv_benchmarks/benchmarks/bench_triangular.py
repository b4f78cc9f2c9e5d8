from . import common


class Triangular(common.suite("triangular")):
    pass
