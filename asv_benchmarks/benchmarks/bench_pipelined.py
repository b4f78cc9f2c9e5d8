from . import common


class Pipelined(common.suite("pipelined")):
    pass
