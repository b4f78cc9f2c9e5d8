// Elementwise operations on the bits of numbers, one thread an element. So subnormal numbers count
// as what they are also on GPUs whose arithmetic flushes them.

constexpr constant uint UNSIGNED = 0;
constexpr constant uint SIGNED = 1;

constexpr constant uint EQUAL = 0;
constexpr constant uint NOT_EQUAL = 1;
constexpr constant uint LESS = 2;
constexpr constant uint LESS_EQUAL = 3;
constexpr constant uint GREATER = 4;

template <typename B> inline B top_bit() { return B(B(1) << (sizeof(B) * 8 - 1)); }
template <typename B> inline B magnitude(B x) { return B(x & B(~top_bit<B>())); }

// x = mantissa 2^exponent with a mantissa from 1/2 to 1; zero, infinity and NaN have the exponent
// 0. B are the bits of numbers of which DIGITS are behind the point.
template <typename B, int DIGITS>
kernel void elementwise_frexp(
    device const B* x [[buffer(0)]],
    device B* mantissas [[buffer(1)]],
    device int* exponents [[buffer(2)]],
    uint i [[thread_position_in_grid]]) {
  constexpr int FIELD = int(sizeof(B)) * 8 - 1 - DIGITS;
  constexpr int BIAS = (1 << (FIELD - 1)) - 1;
  const B bits = x[i];
  const B size = magnitude(bits);
  const B implicit = B(B(1) << DIGITS);
  int field = int(size >> DIGITS);
  B fraction = B(size & B(implicit - B(1)));
  B mantissa = bits;
  int exponent = 0;
  if (field != 2 * BIAS + 1 && size != B(0)) {
    if (field == 0) {
      field = 1;
      for (int shift = 0; shift < DIGITS; ++shift) {
        if (fraction < implicit) {
          fraction = B(fraction << 1);
          field -= 1;
        }
      }
      fraction = B(fraction - implicit);
    }
    exponent = field - BIAS + 1;
    mantissa = B((bits & top_bit<B>()) | B(B(BIAS - 1) << DIGITS) | fraction);
  }
  mantissas[i] = mantissa;
  exponents[i] = exponent;
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

template <typename B>
kernel void elementwise_compare(
    device const B* x [[buffer(0)]],
    device const B* others [[buffer(1)]],
    device uchar* results [[buffer(2)]],
    constant uint& several [[buffer(3)]],
    constant long& other [[buffer(4)]],
    constant uint& comparison [[buffer(5)]],
    constant uint& kind [[buffer(6)]],
    constant long& infinity [[buffer(7)]],
    uint i [[thread_position_in_grid]]) {
  const B a = x[i];
  const B b = several != 0 ? others[i] : B(other);
  const B key = ordered(a, kind);
  const B key_of_other = ordered(b, kind);
  bool result = key >= key_of_other;
  if (comparison == EQUAL) result = key == key_of_other;
  if (comparison == NOT_EQUAL) result = key != key_of_other;
  if (comparison == LESS) result = key < key_of_other;
  if (comparison == LESS_EQUAL) result = key <= key_of_other;
  if (comparison == GREATER) result = key > key_of_other;
  const bool numbers = is_number(a, B(infinity), kind) && is_number(b, B(infinity), kind);
  results[i] = uchar(numbers ? result : comparison == NOT_EQUAL);
}

// 0, values or 1 where x is negative, zero or positive; 0 of NaN, as torch has it.
template <typename B>
kernel void elementwise_heaviside(
    device const B* x [[buffer(0)]],
    device const B* values [[buffer(1)]],
    device B* results [[buffer(2)]],
    constant uint& kind [[buffer(3)]],
    constant long& infinity [[buffer(4)]],
    constant long& one [[buffer(5)]],
    uint i [[thread_position_in_grid]]) {
  const B a = x[i];
  const B zero = ordered(B(0), kind);
  const B key = ordered(a, kind);
  const bool positive = key > zero && is_number(a, B(infinity), kind);
  results[i] = key == zero ? values[i] : (positive ? B(one) : B(0));
}

// 2^e = mantissa 2^(exponent - 64) for e = start + i step, of 32 bits before and 96 behind the
// point.
struct PowerOfTwo {
  ulong mantissa;
  int exponent;
};

inline PowerOfTwo power_of_two(ulong start_high, ulong start_low, ulong high, ulong low, uint i) {
  const ulong count = ulong(i);
  const ulong sum_low = start_low + low * count;
  const ulong carry = mulhi(low, count) + (sum_low < start_low ? ulong(1) : ulong(0));
  const ulong sum_high = start_high + high * count + carry;
  const ulong fraction = (sum_high << 32) | (sum_low >> 32);
  // exp(y) / 2 for y = fraction log 2, by Horner's rule in fixed point.
  const ulong y = mulhi(fraction, ulong(0xb17217f7d1cf79ab));
  ulong half_power = ulong(1) << 63;
#pragma unroll
  for (uint j = 22; j > 0; --j) {
    const ulong inverse = ~ulong(0) / ulong(j);
    half_power = (ulong(1) << 63) + mulhi(mulhi(y, inverse), half_power);
  }
  const PowerOfTwo power = {half_power, int(uint(sum_high >> 32)) + 1};
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
  const PowerOfTwo p =
      power_of_two(ulong(start_high), ulong(start_low), ulong(step_high), ulong(step_low), i);
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
  const PowerOfTwo p =
      power_of_two(ulong(start_high), ulong(start_low), ulong(step_high), ulong(step_low), i);
  const ulong digits = leading(p.mantissa, 53u);
  const int shift = p.exponent - 53;
  ulong value = ulong(1) << 63;
  if (shift < 0) value = shift > -54 ? digits >> (uint(-shift) & 63u) : ulong(0);
  if (shift >= 0 && shift <= 11) value = digits << (uint(shift) & 63u);
  values[i] = B(value);
}
