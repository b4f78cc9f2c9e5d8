from mpslinalg._bench import FAMILIES

from . import common


class QR:
    cases = common.cases(FAMILIES["qr"])
    params = (list(cases), list(common.PROVIDERS))
    param_names = ("case", "provider")
    timeout = 300  # includes the compilation of kernels

    def setup(self, case: str, provider: str) -> None:
        self.body = common.prepare(self.cases[case], provider)

    def time_call(self, case: str, provider: str) -> None:
        self.body()
