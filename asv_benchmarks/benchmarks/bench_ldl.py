from . import common


class LDL(common.suite("ldl")):
    pass
