// Elementwise operations on the bits of numbers. So subnormal numbers count as what they are also
// on GPUs whose arithmetic flushes them. A thread of those that read memory has PER_THREAD
// elements, neighbours in a simdgroup, all read before any is written: so many reads are waited for
// at once.

constexpr constant uint PER_THREAD = 8;

constexpr constant uint UNSIGNED = 0;
constexpr constant uint SIGNED = 1;

template <typename B> struct Elements {
  B at[PER_THREAD];
};

inline uint place(uint id, uint j) { return id / 32u * (32u * PER_THREAD) + 32u * j + id % 32u; }
template <typename B> inline Elements<B> elements(device const B* x, uint id, uint count) {
  Elements<B> read;
#pragma unroll
  for (uint j = 0; j < PER_THREAD; ++j) read.at[j] = x[min(place(id, j), count - 1u)];
  return read;
}

template <typename B> inline B top_bit() { return B(B(1) << (sizeof(B) * 8 - 1)); }
template <typename B> inline B magnitude(B x) { return B(x & B(~top_bit<B>())); }

template <typename B> struct Parts {
  B mantissa;
  int exponent;
};

template <typename B, int DIGITS> inline Parts<B> parts(B bits) {
  constexpr int FIELD = int(sizeof(B)) * 8 - 1 - DIGITS;
  constexpr int BIAS = (1 << (FIELD - 1)) - 1;
  const B size = magnitude(bits);
  const B implicit = B(B(1) << DIGITS);
  int field = int(size >> DIGITS);
  B fraction = B(size & B(implicit - B(1)));
  Parts<B> result = {bits, 0};
  if (field != 2 * BIAS + 1 && size != B(0)) {
    if (field == 0) {
      field = 1;
      while (fraction < implicit) {
        fraction = B(fraction << 1);
        field -= 1;
      }
      fraction = B(fraction - implicit);
    }
    result.exponent = field - BIAS + 1;
    result.mantissa = B((bits & top_bit<B>()) | B(B(BIAS - 1) << DIGITS) | fraction);
  }
  return result;
}

// x = mantissa 2^exponent with a mantissa from 1/2 to 1; zero, infinity and NaN have the exponent
// 0. B are the bits of numbers of which DIGITS are behind the point.
template <typename B, int DIGITS>
kernel void elementwise_frexp(
    device const B* x [[buffer(0)]],
    device B* mantissas [[buffer(1)]],
    device int* exponents [[buffer(2)]],
    constant uint& count [[buffer(3)]],
    uint id [[thread_position_in_grid]]) {
  const Elements<B> given = elements(x, id, count);
#pragma unroll
  for (uint j = 0; j < PER_THREAD; ++j) {
    const uint i = place(id, j);
    if (i < count) {
      const Parts<B> of = parts<B, DIGITS>(given.at[j]);
      mantissas[i] = of.mantissa;
      exponents[i] = of.exponent;
    }
  }
}

// Unsigned integers that order as the numbers do; floating-point zeros are equal.
template <typename B> inline B ordered(B bits, uint kind) {
  if (kind == UNSIGNED) return bits;
  if (kind == SIGNED) return B(bits ^ top_bit<B>());
  if (magnitude(bits) == B(0)) return top_bit<B>();
  return bits != magnitude(bits) ? B(~bits) : B(bits | top_bit<B>());
}

// infinity: the bits above which a magnitude is none.
template <typename B> inline bool is_number(B bits, B infinity, uint kind) {
  return kind <= SIGNED || magnitude(bits) <= infinity;
}

// Results are the bits of `truth`: of less, equal, greater, and of what is no number.
template <typename B>
kernel void elementwise_compare(
    device const B* x [[buffer(0)]],
    device const B* others [[buffer(1)]],
    device uchar* results [[buffer(2)]],
    constant uint& count [[buffer(3)]],
    constant uint& several [[buffer(4)]],
    constant long& other [[buffer(5)]],
    constant uint& truth [[buffer(6)]],
    constant uint& kind [[buffer(7)]],
    constant long& infinity [[buffer(8)]],
    uint id [[thread_position_in_grid]]) {
  const Elements<B> first = elements(x, id, count);
  Elements<B> second = first;
  if (several != 0) second = elements(others, id, count);
#pragma unroll
  for (uint j = 0; j < PER_THREAD; ++j) {
    const uint i = place(id, j);
    const B a = first.at[j];
    const B b = several != 0 ? second.at[j] : B(other);
    const B key = ordered(a, kind);
    const B key_of_other = ordered(b, kind);
    uint relation = key < key_of_other ? 0u : (key == key_of_other ? 1u : 2u);
    if (!(is_number(a, B(infinity), kind) && is_number(b, B(infinity), kind))) relation = 3u;
    if (i < count) results[i] = uchar((truth >> (relation & 31u)) & 1u);
  }
}

// 0, values or 1 where x is negative, zero or positive; 0 of NaN, as torch has it.
template <typename B>
kernel void elementwise_heaviside(
    device const B* x [[buffer(0)]],
    device const B* values [[buffer(1)]],
    device B* results [[buffer(2)]],
    constant uint& count [[buffer(3)]],
    constant uint& kind [[buffer(4)]],
    constant long& infinity [[buffer(5)]],
    constant long& one [[buffer(6)]],
    uint id [[thread_position_in_grid]]) {
  const Elements<B> given = elements(x, id, count);
  const Elements<B> at_zero = elements(values, id, count);
  const B zero = ordered(B(0), kind);
#pragma unroll
  for (uint j = 0; j < PER_THREAD; ++j) {
    const uint i = place(id, j);
    const B key = ordered(given.at[j], kind);
    const bool positive = key > zero && is_number(given.at[j], B(infinity), kind);
    const B value = key == zero ? at_zero.at[j] : (positive ? B(one) : B(0));
    if (i < count) results[i] = value;
  }
}

// 2^e = mantissa 2^(exponent - 64) for e = start + i step, of 32 bits before and 96 behind the
// point.
struct PowerOfTwo {
  ulong mantissa;
  int exponent;
};

// exp(y) / 2 in fixed point for y < log 2, without the terms behind y^LAST: of 13 the rest is less
// than 2^-43, of 20 nothing. TERM = 2^63 / J!, and what is returned is the sum from there on, over
// y^J.
template <uint LAST, uint J, ulong TERM> inline ulong half_power(ulong y) {
  if constexpr (J == LAST) {
    return TERM;
  } else {
    return TERM + mulhi(y, half_power<LAST, J + 1, TERM / (J + 1)>(y));
  }
}

template <uint LAST>
inline PowerOfTwo power_of_two(long start_high, long start_low, long high, long low, uint i) {
  const ulong count = ulong(i);
  const ulong sum_low = ulong(start_low) + ulong(low) * count;
  const ulong carry = mulhi(ulong(low), count) + (sum_low < ulong(start_low) ? ulong(1) : ulong(0));
  const ulong sum_high = ulong(start_high) + ulong(high) * count + carry;
  const ulong fraction = (sum_high << 32) | (sum_low >> 32);
  const ulong y = mulhi(fraction, ulong(0xb17217f7d1cf79ab));
  const ulong mantissa = half_power<LAST, 0, ulong(1) << 63>(y);
  const PowerOfTwo power = {mantissa, int(uint(sum_high >> 32)) + 1};
  return power;
}

// The leading bits, the last one rounded.
inline ulong leading(ulong mantissa, uint bits) {
  return (mantissa >> ((64u - bits) & 63u)) + ((mantissa >> ((63u - bits) & 63u)) & ulong(1));
}

template <typename T, typename R, int BITS>
kernel void elementwise_logspace(
    device T* values [[buffer(0)]],
    constant long& start_high [[buffer(1)]],
    constant long& start_low [[buffer(2)]],
    constant long& step_high [[buffer(3)]],
    constant long& step_low [[buffer(4)]],
    uint i [[thread_position_in_grid]]) {
  constexpr uint LAST = BITS <= 25 ? 13 : 20;
  const PowerOfTwo p = power_of_two<LAST>(start_high, start_low, step_high, step_low, i);
  values[i] = T(ldexp(R(leading(p.mantissa, uint(BITS))), p.exponent - BITS));
}

// The same, rounded to 53 bits and cut off to an integer, as torch does.
template <typename B>
kernel void elementwise_logspace_integer(
    device B* values [[buffer(0)]],
    constant long& start_high [[buffer(1)]],
    constant long& start_low [[buffer(2)]],
    constant long& step_high [[buffer(3)]],
    constant long& step_low [[buffer(4)]],
    uint i [[thread_position_in_grid]]) {
  const PowerOfTwo p = power_of_two<20>(start_high, start_low, step_high, step_low, i);
  const ulong digits = leading(p.mantissa, 53u);
  const int shift = p.exponent - 53;
  ulong value = ulong(1) << 63;
  if (shift < 0) value = shift > -54 ? digits >> (uint(-shift) & 63u) : ulong(0);
  if (shift >= 0 && shift <= 11) value = digits << (uint(shift) & 63u);
  values[i] = B(value);
}
