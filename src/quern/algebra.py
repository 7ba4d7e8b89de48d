r"""The quaternion algebra, and the only place where its signs are written down.

A quaternion :math:`q = q_r + i q_i + j q_j + k q_k` is a slice of length 4 along one axis of an ordinary real tensor,
in the order (r, i, j, k). That axis is the first one (``dim=0``) unless said otherwise, as in every parameter of
``quern.nn``; the other axes broadcast.
"""

import torch
from jaxtyping import Float
from torch import Tensor

UNITS = "rijk"

# UNIT_SIGN[p][q] is the sign of the product of units e_p e_q; the unit itself is e_{p xor q}, because numbered as
# r=0, i=1, j=2, k=3 the units form the group Z2 x Z2 up to sign. The rows say: i^2 = j^2 = k^2 = ijk = -1.
UNIT_SIGN: tuple[tuple[int, int, int, int], ...] = (
    (+1, +1, +1, +1),  # r:  r,  i,  j,  k
    (+1, -1, +1, -1),  # i:  i, -1,  k, -j
    (+1, -1, -1, +1),  # j:  j, -k, -1,  i
    (+1, +1, -1, -1),  # k:  k,  j, -i, -1
)


def _parts(q: Tensor, dim: int, name: str = "q") -> tuple[Tensor, ...]:
    if q.shape[dim] != 4:
        raise ValueError(f"{name} needs size 4 along dim {dim} (r, i, j, k), but its shape is {tuple(q.shape)}.")
    return q.unbind(dim)


def hamilton(a: Float[Tensor, "..."], b: Float[Tensor, "..."], dim: int = 0) -> Float[Tensor, "..."]:
    r"""The Hamilton product :math:`a \otimes b`, so that ``hamilton(i, j) = k`` and ``hamilton(j, i) = -k``.

    Both have size 4 along ``dim``; the axes that remain broadcast against each other.
    """
    pa, pb = _parts(a, dim, "a"), _parts(b, dim, "b")
    rows = []
    for m in range(4):
        terms = [UNIT_SIGN[p][p ^ m] * (pa[p] * pb[p ^ m]) for p in range(4)]
        rows.append(terms[0] + terms[1] + terms[2] + terms[3])
    return torch.stack(rows, dim)


def conjugate(q: Float[Tensor, "..."], dim: int = 0) -> Float[Tensor, "..."]:
    r"""The conjugate :math:`q^* = q_r - i q_i - j q_j - k q_k`."""
    r, i, j, k = _parts(q, dim)
    return torch.stack([r, -i, -j, -k], dim)


def modulus(q: Float[Tensor, "..."], dim: int = 0, keepdim: bool = False) -> Float[Tensor, "..."]:
    r"""The modulus :math:`|q| = \sqrt{q_r^2 + q_i^2 + q_j^2 + q_k^2}`, with gradient :math:`q / |q|`, and 0 at 0.

    Zero is where sparse training drives the weights, and where the plain square root has the gradient NaN.
    """
    _parts(q, dim)
    # Torch's norm over numbers that lie far apart is ten times slower than moving them together first.
    n = torch.linalg.vector_norm(q.movedim(dim, -1).contiguous(), dim=-1)
    return n.unsqueeze(dim) if keepdim else n


def inverse(q: Float[Tensor, "..."], dim: int = 0) -> Float[Tensor, "..."]:
    r"""The inverse :math:`q^{-1} = q^* / |q|^2`. Zero has none and gives NaN."""
    size = _size(q, dim)
    q = q / size
    n = modulus(q, dim, keepdim=True)
    return conjugate(q, dim) / (n * n) / size


def normalize(q: Float[Tensor, "..."], dim: int = 0) -> Float[Tensor, "..."]:
    r"""The unit quaternion :math:`q / |q|`; zero stays zero."""
    q = q / _size(q, dim)
    n = modulus(q, dim, keepdim=True)
    return q / torch.where(n == 0, 1, n)


def _size(q: Tensor, dim: int) -> Tensor:
    """The largest component, 1 for zero, to divide by before squaring: squares leave the range of the dtype long before
    the quaternion does. No gradient passes: what is multiplied back cancels it."""
    _parts(q, dim)
    size = q.detach().abs().amax(dim, keepdim=True)
    return torch.where(size == 0, 1, size)


def exp(q: Float[Tensor, "..."], dim: int = 0) -> Float[Tensor, "..."]:
    r"""The exponential :math:`e^{q_r} (\cos|v| + v \sin|v| / |v|)` with :math:`v = i q_i + j q_j + k q_k`."""
    _parts(q, dim)
    r, v = q.narrow(dim, 0, 1), q.narrow(dim, 1, 3)
    angle = torch.linalg.vector_norm(v, dim=dim, keepdim=True)
    return r.exp() * torch.cat([angle.cos(), v * torch.sinc(angle / torch.pi)], dim)


def log(q: Float[Tensor, "..."], dim: int = 0) -> Float[Tensor, "..."]:
    r"""The principal logarithm :math:`\ln|q| + \frac{v}{|v|} \mathrm{atan2}(|v|, q_r)`, the inverse of :func:`exp`.

    Every direction is as good as another for a negative real number; as for complex numbers, ``i`` is taken. The real
    part of ``log(0)`` is ``-inf``.
    """
    _parts(q, dim)
    r, v = q.narrow(dim, 0, 1), q.narrow(dim, 1, 3)
    size = torch.linalg.vector_norm(v, dim=dim, keepdim=True)
    real = size == 0
    # Both branches of a `where` are differentiated, so the one not taken needs harmless values too.
    safe_size = torch.where(real, 1, size)
    near_r = torch.where(real & (r > 0), r, 1)
    scale = torch.where(real, 1 / near_r, torch.atan2(safe_size, r) / safe_size)
    axis_i = torch.zeros_like(v)
    axis_i.narrow(dim, 0, 1).fill_(torch.pi)
    vector = torch.where(real & (r < 0), axis_i, v * scale)
    return torch.cat([modulus(q, dim, keepdim=True).log(), vector], dim)


def rotate(v: Float[Tensor, "..."], q: Float[Tensor, "..."], dim: int = 0) -> Float[Tensor, "..."]:
    r"""The vector ``v`` (size 3 along ``dim``) turned by ``q``, any but 0: :math:`q \otimes v \otimes q^{-1}`."""
    if v.shape[dim] != 3:
        raise ValueError(f"v needs size 3 along dim {dim} (i, j, k), but its shape is {tuple(v.shape)}.")
    unit = normalize(q, dim)
    pure = torch.cat([torch.zeros_like(v.narrow(dim, 0, 1)), v], dim)
    return hamilton(hamilton(unit, pure, dim), conjugate(unit, dim), dim).narrow(dim, 1, 3)


def left_matrix(q: Float[Tensor, "4 ..."]) -> Float[Tensor, "4 4 ..."]:
    r"""The real matrix :math:`L(q)` with :math:`L(q)\, b = q \otimes b`; row = component of the result."""
    p = _parts(q, 0)
    return torch.stack([torch.stack([UNIT_SIGN[m ^ c][c] * p[m ^ c] for c in range(4)]) for m in range(4)])


def right_matrix(q: Float[Tensor, "4 ..."]) -> Float[Tensor, "4 4 ..."]:
    r"""The real matrix :math:`R(q)` with :math:`R(q)\, a = a \otimes q`; row = component of the result."""
    p = _parts(q, 0)
    return torch.stack([torch.stack([UNIT_SIGN[c][m ^ c] * p[m ^ c] for c in range(4)]) for m in range(4)])
