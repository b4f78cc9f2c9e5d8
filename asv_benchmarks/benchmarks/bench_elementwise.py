from . import common


class Elementwise(common.suite("elementwise")):
    pass
