"""What several layers have in common: for other parts of quern that ask what kind of layer they hold."""

from quern.nn._conv import QConvolution
from quern.nn._norm import QBatchNorm
from quern.nn._pool import QMaxPool
from quern.nn._recurrent import QRecurrent

__all__ = ["QBatchNorm", "QConvolution", "QMaxPool", "QRecurrent"]
