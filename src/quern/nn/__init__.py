"""Quaternion layers, drop-in like ``torch.nn``: same names of arguments, same order, sizes in real channels."""

from quern.functional import cat, encode_gray, encode_rgb
from quern.nn import init
from quern.nn._attention import QMultiheadAttention
from quern.nn._conv import (
    QConv1d,
    QConv2d,
    QConv3d,
    QConvTranspose1d,
    QConvTranspose2d,
    QConvTranspose3d,
    SplitConv2d,
)
from quern.nn._dropout import QDropout, QDropout2d
from quern.nn._embedding import QEmbedding
from quern.nn._linear import QLinear
from quern.nn._norm import QBatchNorm1d, QBatchNorm2d, QBatchNorm3d, QGroupNorm, QLayerNorm, QWhiteningBatchNorm2d
from quern.nn._pool import QMaxPool1d, QMaxPool2d, QMaxPool3d, SplitMaxPool2d
from quern.nn._readout import Modulus, QModReLU
from quern.nn._recurrent import QGRU, QLSTM, QRNN
from quern.nn._sequential import Sequential
from quern.nn._synchronized import convert_sync_batchnorm, revert_sync_batchnorm
from quern.nn._transformer import (
    QTransformerDecoder,
    QTransformerDecoderLayer,
    QTransformerEncoder,
    QTransformerEncoderLayer,
)

__all__ = ["QGRU", "QLSTM", "QRNN", "Modulus", "QBatchNorm1d", "QBatchNorm2d", "QBatchNorm3d", "QConv1d", "QConv2d"]
__all__ += ["QConv3d", "QConvTranspose1d", "QConvTranspose2d", "QConvTranspose3d", "QDropout", "QDropout2d"]
__all__ += ["QTransformerDecoder", "QTransformerDecoderLayer", "QTransformerEncoder", "QTransformerEncoderLayer"]
__all__ += ["QEmbedding", "QGroupNorm", "QLayerNorm", "QLinear", "QMaxPool1d", "QMaxPool2d", "QMaxPool3d", "QModReLU"]
__all__ += ["QMultiheadAttention", "QWhiteningBatchNorm2d", "Sequential", "SplitConv2d", "SplitMaxPool2d", "cat"]
__all__ += ["convert_sync_batchnorm", "encode_gray", "encode_rgb", "init", "revert_sync_batchnorm"]
