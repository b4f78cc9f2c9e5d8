from . import common


class Special(common.suite("special")):
    pass
