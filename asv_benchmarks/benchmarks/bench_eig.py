from . import common


class Eig(common.suite("eig")):
    pass
