// Implicit QL of a symmetric tridiagonal matrix of at most 32 rows by one simdgroup: lane i has the
// entries d_i of the diagonal and e_i beside it, and row i of Z, which the rotations turn.
// Source: Bowdler, Martin, Reinsch, Wilkinson, "The QR and QL algorithms for symmetric matrices"
// (1968); Parlett, "The Symmetric Eigenvalue Problem" (1980), chapter 8.

// QL steps that an eigenvalue may take, on average; usual are less than two.
constexpr constant uint MAX_QL_STEPS = 30;

template <typename R> struct Givens {
  R c;
  R s;
  R r;
};

// c g + s f = r and c f = s g. Squares are of numbers near 1, or of smaller ones scaled up.
template <typename R> inline Givens<R> givens(R g, R f) {
  const bool tiny = fma(g, g, f * f) < R(0x1p-80f);
  const R up = tiny ? R(0x1p60f) : R(1);
  const R x = g * up;
  const R y = f * up;
  const R square = fma(x, x, y * y);
  // GPUs estimate the root to a few digits less than all; a step of Newton's gives them.
  const R estimate = rsqrt(square);
  const R inverse = fma(estimate * R(0.5f), fma(-square * estimate, estimate, R(1)), estimate);
  const bool turns = square > R(0);
  const Givens<R> turn = {
      turns ? x * inverse : R(1),
      turns ? y * inverse : R(0),
      turns ? square * inverse * (tiny ? R(0x1p-60f) : R(1)) : R(0),
  };
  return turn;
}

// d becomes the eigenvalues, in no order. Entries are at most near 1. False: no convergence.
template <typename R>
inline bool ql(thread R& d, thread R& e, uint n, bool with_vectors, threadgroup R* z, uint lane) {
  uint steps = MAX_QL_STEPS * n;
  uint l = 0;
  while (l < n) {
    const R next = simd_shuffle(d, ushort(min(lane + 1, 31u)));
    const bool apart = fabs(e) <= unit_roundoff<R>() * (fabs(d) + fabs(next)) ||
                       fabs(e) <= negligible<R>() || lane + 1 >= n;
    const uint m = simd_min(lane >= l && apart ? lane : 31u);
    if (lane == m) e = R(0);
    if (m == l) {
      l += 1;
      continue;
    }
    if (steps == 0) return false;
    steps -= 1;
    // Wilkinson's shift.
    const R first = simd_shuffle(d, ushort(l));
    const R beside = simd_shuffle(e, ushort(l));
    const R half_gap = (simd_shuffle(d, ushort(l + 1)) - first) / (R(2) * beside);
    const R steep = fabs(half_gap);
    const R root = steep < R(0x1p30f) ? sqrt(fma(steep, steep, R(1))) : steep;
    R upper = simd_shuffle(d, ushort(m));
    R g = upper - first + beside / (half_gap < R(0) ? half_gap - root : half_gap + root);
    R s = R(1);
    R c = R(1);
    R p = R(0);
    for (uint i = m; i-- > l;) {
      const R e_i = simd_shuffle(e, ushort(i));
      const R d_i = simd_shuffle(d, ushort(i));
      const R b = c * e_i;
      const Givens<R> turn = givens(g, s * e_i);
      c = turn.c;
      s = turn.s;
      g = upper - p;
      const R r = fma(d_i - g, s, R(2) * c * b);
      p = s * r;
      if (lane == i + 1) {
        // That of row m stays zero.
        if (i + 1 < m) e = turn.r;
        d = g + p;
      }
      g = fma(c, r, -b);
      upper = d_i;
      if (with_vectors) {
        const R low = z[i];
        const R high = z[i + 1];
        z[i + 1] = fma(s, low, c * high);
        z[i] = fma(c, low, -(s * high));
      }
    }
    if (lane == l) {
      d = upper - p;
      e = g;
    }
  }
  return true;
}
