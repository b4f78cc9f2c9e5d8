from . import common


class QR(common.suite("qr")):
    pass
