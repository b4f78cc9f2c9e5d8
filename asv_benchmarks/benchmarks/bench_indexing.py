from . import common


class Indexing(common.suite("indexing")):
    pass
