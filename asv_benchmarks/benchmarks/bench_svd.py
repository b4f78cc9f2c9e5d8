from . import common


class SingularValues(common.suite("svd")):
    pass
