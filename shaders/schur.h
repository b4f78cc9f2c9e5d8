// The shifted QR iteration that takes a Hessenberg matrix to Schur form: triangular if complex,
// with 2 x 2 blocks of equal diagonal entries for conjugate pairs if real. Threads as in
// hessenberg.h.

// The sweeps that a matrix may take are this many times its rows, LAPACK's bound.
constexpr constant uint SWEEPS_A_ROW = 30;

// What one launch leaves to the next: the rows that have not converged, the sweeps since the last
// deflation, and all.
struct Iteration {
  uint active;
  uint stalled;
  uint sweeps;
};

// I - tau v v^H with v = (1, v1, v2): its adjoint takes (x0, x1, x2) to (beta, 0, 0). However small
// x1 and x2 are they count: by them subdiagonal entries go on to shrink.
template <typename T> struct Turn {
  T tau;
  T v1;
  T v2;
  real_t<T> beta;
};

template <typename T> inline Turn<T> turn_of(Bulge<T> bulge) {
  typedef real_t<T> R;
  const R largest =
      max(largest_part(bulge.x[0]), max(largest_part(bulge.x[1]), largest_part(bulge.x[2])));
  const int e = exponent_of(largest);
  const T alpha = scale(bulge.x[0], -e);
  const T x1 = scale(bulge.x[1], -e);
  const T x2 = scale(bulge.x[2], -e);
  const R size = sqrt(square_of(alpha) + (square_of(x1) + square_of(x2)));
  const R beta = real_part(alpha) < R(0) ? size : -size;
  const T difference = alpha - from_real<T>(beta);
  Turn<T> turn = {zero<T>(), zero<T>(), zero<T>(), real_part(bulge.x[0])};
  if (!is_zero(x1) || !is_zero(x2) || !is_zero(alpha - from_real<T>(real_part(alpha)))) {
    const T inverse = quotient(one<T>(), difference);
    turn.tau = mul(from_real<T>(R(-1) / beta), difference);
    turn.v1 = mul(x1, inverse);
    turn.v2 = mul(x2, inverse);
    turn.beta = ldexp(beta, e);
  }
  return turn;
}

// (x0, x1, x2) times the reflection; from the left its adjoint, by conjugates of the three.
template <typename T> inline void turn_three(thread Bulge<T>& a, T tau, T v1, T v2) {
  const T sum = mul(tau, mul_add(mul_add(a.x[0], a.x[1], v1), a.x[2], v2));
  a.x[0] = a.x[0] - sum;
  a.x[1] = mul_sub(a.x[1], sum, conj(v1));
  a.x[2] = mul_sub(a.x[2], sum, conj(v2));
}

// The same for three entries that lie `step` apart, in a step of a sweep. Unless they are `fresh`,
// all but the last come from the step before in `held`; `kept` leaves all but the first to the
// next, so that in a sweep each entry is read and written once. Without `three` there are two.
template <typename T, typename P>
inline void slide(
    P a, uint step, bool three, bool fresh, bool kept, thread Bulge<T>& held, T tau, T v1, T v2) {
  if (fresh) held.x[0] = a[0];
  if (fresh || bulge_rows<T>() == 2) held.x[1] = a[step];
  held.x[2] = three ? a[2 * step] : zero<T>();
  turn_three(held, tau, v1, v2);
  a[0] = held.x[0];
  if (!kept) {
    a[step] = held.x[1];
    if (three) a[2 * step] = held.x[2];
  }
  held.x[0] = held.x[1];
  held.x[1] = held.x[2];
}

// (a0, a1) turned by a real rotation; the entries lie `step` apart.
template <typename T, typename P> inline void turn_two(P a, uint step, T cosine, T sine) {
  const T x = a[0];
  const T y = a[step];
  a[0] = fma(cosine, x, sine * y);
  a[step] = fma(cosine, y, -(sine * x));
}

// What a rotation [c s; -s c] makes of a real block [a b; c d], and the rotation: a = d and b c <
// 0, or c = 0.
template <typename R> struct Standard {
  R a;
  R b;
  R c;
  R d;
  R cosine;
  R sine;
};

template <typename R> inline Standard<R> rotated(Standard<R> s, R cosine, R sine) {
  const R a = fma(s.a, cosine, s.b * sine);
  const R b = fma(s.b, cosine, -(s.a * sine));
  const R c = fma(s.c, cosine, s.d * sine);
  const R d = fma(s.d, cosine, -(s.c * sine));
  Standard<R> turned;
  turned.a = fma(a, cosine, c * sine);
  turned.b = fma(b, cosine, d * sine);
  turned.c = fma(c, cosine, -(a * sine));
  turned.d = fma(d, cosine, -(b * sine));
  turned.cosine = fma(s.cosine, cosine, -(s.sine * sine));
  turned.sine = fma(s.sine, cosine, s.cosine * sine);
  return turned;
}

// The block is scaled to a largest entry near 1.
template <typename R> inline Standard<R> standardized(R a, R b, R c, R d) {
  Standard<R> s = {a, b, c, d, R(1), R(0)};
  const R p = (a - d) / R(2);
  const R square = fma(p, p, b * c);
  if (square > R(4) * spacing<R>() * max(p * p, fabs(b * c))) {
    // Two real eigenvalues that are apart: the vector of the one farther from d, (z, c).
    const R z = p + (p < R(0) ? -sqrt(square) : sqrt(square));
    const R length = sqrt(fma(z, z, c * c));
    s.cosine = z / length;
    s.sine = c / length;
    s.a = d + z;
    s.d = d - b / z * c;
    s.b = b - c;
    s.c = R(0);
    return s;
  }
  // Equal entries on the diagonal, by the smaller angle; then either the pair is conjugate, or the
  // eigenvalues are equal up to rounding.
  const R largest = max(fabs(b + c), fabs(a - d));
  if (largest > R(0)) {
    // Both may be no more than rounding, whose squares underflow.
    const int e = exponent_of(largest);
    const R sigma = ldexp(b + c, -e);
    const R difference = ldexp(a - d, -e);
    const R length = sqrt(fma(sigma, sigma, difference * difference));
    const R cosine = sqrt((R(1) + fabs(sigma) / length) / R(2));
    const R sine = difference / (R(2) * length * cosine);
    s = rotated(s, cosine, sigma < R(0) ? sine : -sine);
  }
  s.a = (s.a + s.d) / R(2);
  s.d = s.a;
  if (s.c != R(0) && s.b * s.c >= R(0)) {
    const R root_b = sqrt(fabs(s.b));
    const R root_c = sqrt(fabs(s.c));
    const R size = sqrt(fabs(s.b) + fabs(s.c));
    const R shift = s.c < R(0) ? -root_b * root_c : root_b * root_c;
    const R mean = s.a;
    const R difference = s.b - s.c;
    s = rotated(s, root_b / size, root_c / size);
    s.a = mean + shift;
    s.d = mean - shift;
    s.b = difference;
    s.c = R(0);
  }
  return s;
}

// Splits the real block of rows k and k + 1 off: into two eigenvalues, or a conjugate pair.
template <bool GROUP, typename T, typename P>
inline void split_pair(
    P H, P Z, uint stride, uint n, uint k, bool vectors, thread const Crew& crew) {
  if constexpr (!scalar_traits<T>::complex) {
    const uint own = crew.tid;
    P at = H + k * stride + k;
    const T largest =
        max(max(fabs(at[0]), fabs(at[1])), max(fabs(at[stride]), fabs(at[stride + 1])));
    const int e = exponent_of(largest);
    const Standard<T> s = standardized(
        ldexp(at[0], -e), ldexp(at[stride], -e), ldexp(at[1], -e), ldexp(at[stride + 1], -e));
    meet<GROUP>();
    if (own == 0) {
      at[0] = ldexp(s.a, e);
      at[1] = ldexp(s.c, e);
      at[stride] = ldexp(s.b, e);
      at[stride + 1] = ldexp(s.d, e);
    }
    if (vectors) {
      if (own < n && own > k + 1) turn_two(H + own * stride + k, 1, s.cosine, s.sine);
      if (own < k) turn_two(H + own + k * stride, stride, s.cosine, s.sine);
      if (own < n) turn_two(Z + own + k * stride, stride, s.cosine, s.sine);
    }
  }
}

// One sweep over the rows top ... bottom: a bulge of entries below the subdiagonal is made at the
// top and chased out at the bottom. Without vectors other rows and columns are left as they are.
template <bool GROUP, typename T, typename P>
inline void chase(
    P H,
    P Z,
    uint stride,
    uint n,
    uint top,
    uint bottom,
    Shift<T> shift,
    bool vectors,
    thread const Crew& crew,
    threadgroup real_t<T>* partial) {
  constexpr uint ROWS = bulge_rows<T>();
  const uint own = crew.tid;
  const bool inside = own > top && own + ROWS <= bottom + 1;
  const uint candidate = inside && may_begin<T>(H, stride, own, shift) ? own : top;
  const uint begin = last_of_all<GROUP>(candidate, crew, partial);
  const uint first_row = vectors ? 0 : top;
  const uint end_column = vectors ? n : bottom + 1;
  Bulge<T> bulge = first_bulge<T>(H, stride, begin, shift);
  Bulge<T> column_held = bulge;
  Bulge<T> row_held = bulge;
  Bulge<T> held_of_Z = bulge;
  meet<GROUP>();
  for (uint k = begin; k < bottom; ++k) {
    const bool first = k == begin;
    const bool last = k + 1 == bottom;
    const bool three = ROWS == 3 && !last;
    // Of H_{k,k-1}; without a meaning in row 0, where no sweep has a step before.
    const uint before = k * stride + k - stride;
    if (!first) {
      bulge.x[0] = H[before];
      bulge.x[1] = H[before + 1];
      bulge.x[2] = three ? H[before + 2] : zero<T>();
    }
    const Turn<T> turn = turn_of(bulge);
    if (own >= k && own < end_column) {
      // The turn from the right changes columns k ... k + ROWS - 1 in memory.
      const bool fresh = first || own + 1 < k + ROWS;
      const bool kept = !last && own >= k + ROWS;
      P a = H + own * stride + k;
      slide(a, 1, three, fresh, kept, column_held, conj(turn.tau), conj(turn.v1), conj(turn.v2));
    }
    meet<GROUP>();
    // Only now: all threads have read the column.
    if (own == 0 && !first) {
      H[before] = from_real<T>(turn.beta);
      H[before + 1] = zero<T>();
      if (three) H[before + 2] = zero<T>();
    } else if (own == 0 && k > top) {
      H[before] = mul(one<T>() - conj(turn.tau), H[before]);
    }
    const uint place = own + k * stride;
    if (own >= first_row && own <= min(k + ROWS, bottom)) {
      // No later turn from the left changes rows 0 ... k.
      const bool fresh = first || own >= k;
      const bool kept = !last && own <= k;
      slide(H + place, stride, three, fresh, kept, row_held, turn.tau, turn.v1, turn.v2);
    }
    if (vectors && own < n) {
      slide(Z + place, stride, three, first, !last, held_of_Z, turn.tau, turn.v1, turn.v2);
    }
    meet<GROUP>();
  }
}

// At most `sweeps` sweeps and deflations. All threads have the same `iteration`.
template <bool GROUP, typename T, typename P>
inline void iterate(
    P H,
    P Z,
    uint stride,
    uint n,
    bool vectors,
    uint sweeps,
    thread Iteration& iteration,
    thread const Crew& crew,
    threadgroup real_t<T>* partial) {
  const uint own = crew.tid;
  const uint limit = SWEEPS_A_ROW * max(n, 10u);
  for (uint turn = 0; turn < sweeps && iteration.active > 0 && iteration.sweeps < limit; ++turn) {
    const uint bottom = iteration.active - 1;
    const bool split = own > 0 && own <= bottom && splits<T>(H, stride, own, n);
    const uint top = last_of_all<GROUP>(split ? own : 0u, crew, partial);
    meet<GROUP>();
    if (own == top && top > 0) H[top + (top - 1) * stride] = zero<T>();
    meet<GROUP>();
    const uint rows = bottom + 1 - top;
    if (rows < bulge_rows<T>()) {
      if (rows == 2) split_pair<GROUP, T>(H, Z, stride, n, top, vectors, crew);
      iteration.active = top;
      iteration.stalled = 0;
    } else {
      const Shift<T> shift = next_shift<T>(H, stride, top, bottom, iteration.stalled);
      chase<GROUP, T>(H, Z, stride, n, top, bottom, shift, vectors, crew, partial);
      iteration.stalled += 1;
      iteration.sweeps += 1;
    }
    meet<GROUP>();
  }
}
