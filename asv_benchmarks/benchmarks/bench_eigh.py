from . import common


class HermitianEigenproblem(common.suite("eigh")):
    pass
