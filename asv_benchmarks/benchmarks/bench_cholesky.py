from . import common


class Cholesky(common.suite("cholesky")):
    pass
