from . import common


class MatrixFunctions(common.suite("matrix_functions")):
    pass
