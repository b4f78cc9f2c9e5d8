from . import common


class LeastSquares(common.suite("lstsq")):
    pass
